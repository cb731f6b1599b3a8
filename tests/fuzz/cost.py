"""Fuzzes the cost of what reads others' bytes: a piece of an input is repeated many times.

A bound on the form of an input says nothing about its cost. So each reader has a line: the most seconds of
processor time and the most memory that an input may cost, by its size.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.diagnose.archive import pack, unpack
from kprobe_exporter.diagnose.saved_kernel import ABOUT, FORMAT, PATHS, saved_kernel
from kprobe_exporter.elf import functions
from kprobe_exporter.elf.loader_cache import LoaderCache
from kprobe_exporter.elf.notes import parse_notes
from kprobe_exporter.errors import ConfigError, GrammarError
from kprobe_exporter.identity.procfs import INITIAL
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.symbols import perf_map
from kprobe_exporter.symbols.programs import UNKNOWN, Programs
from kprobe_exporter.util.overruns import OVERRUNS
from tests.fuzz import http, readers_of_kernel
from tests.fuzz.material import crafted, hello, programs
from tests.fuzz.target import Input, Line, Take, Target, scratch, spending
from tests.fuzz.trace_text import layouts, saved, stacked
from tests.support import loader_caches
from tests.support.btf_samples import SAMPLE, read_prototypes
from tests.unit.captured import captured

MAX_BITS = 18
"""Inputs have up to 2 to the power of this many bytes. Sizes are as likely in each power of two."""

MAX_PIECE = 512
MAX_FUNCTIONS = 100_000


class Reader(NamedTuple):
    """``read`` returns whether it found something; ``refusals`` are the exceptions that it documents."""

    material: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], object]
    line: Line
    refusals: tuple[type[Exception], ...] = ()


def _elf(data: bytes, directory: Path) -> bool:
    file = directory / "program"
    file.write_bytes(data)
    return any(islice(functions(str(file)), MAX_FUNCTIONS))


_BTF_HEADER = struct.Struct("=HBBIIIII")  # struct btf_header of include/uapi/linux/btf.h
_MAGIC, _, _, _LENGTH, _TYPES_AT, _TYPES_SIZE, _STRINGS_AT, _STRINGS_SIZE = _BTF_HEADER.unpack_from(SAMPLE)
_TYPES = SAMPLE[_LENGTH + _TYPES_AT :][:_TYPES_SIZE]


def _btf(types: bytes) -> bytes:
    """Return a blob of these types, with the names of the sample."""
    types += bytes(-len(types) % 4)
    strings = SAMPLE[_LENGTH + _STRINGS_AT :][:_STRINGS_SIZE]
    header = (_MAGIC, 1, 0, _BTF_HEADER.size, 0, len(types), len(types), len(strings))
    return _BTF_HEADER.pack(*header) + types + strings


_CACHE_HEADER, _ENTRY = struct.Struct("=20sIIB3xI12x"), struct.Struct("=iIIIQ")  # dl-cache.h of glibc
_TGIDS = readers_of_kernel.READERS["saved_tgids"]
_NOTE = struct.pack("<III8sQQQ", 8, 32, 3, b"stapsdt", 1, 2, 0) + b"a\0b\0-4@x\0"
_MAPPINGS = (
    b"00400000-00402000 r-xp 00000000 fe:01 1234 /usr/bin/program\n"
    b"7f0000000000-7f0000002000 r-xp 00001000 fe:01 77 /lib/libc.so.6\n"
    b"7ffc0000-7ffd0000 rw-p 00000000 00:00 0 [stack]\n"
)


def _cache(data: bytes, _: Path) -> bool:
    """Read a cache with these entries, of which each names one of two libraries, one by a long path."""
    names = b"libc.so.6\0/" + b"a" * 4000 + b"\0"
    count = len(data) // _ENTRY.size
    start = _CACHE_HEADER.size + count * _ENTRY.size
    table = b"".join(
        _ENTRY.pack(loader_caches.X86_64, start, start + 10 * (path % 2), 0, hwcap)
        for _, _, path, _, hwcap in _ENTRY.iter_unpack(data[: count * _ENTRY.size])
    )
    header = (b"glibc-ld.so.cache1.1", count, len(names), loader_caches.NATIVE, 0)
    cache = LoaderCache(_CACHE_HEADER.pack(*header) + table + names, loader_caches.X86_64)
    return bool([*cache.find("libc.so.6"), *cache.names()])


def _archive(paths: bytes, _: Path) -> bool:
    """Read a saved kernel whose tracefs has these paths."""
    about = json.dumps({"format": FORMAT, "release": "6.1", "machine": "x86_64"}).encode()
    return bool(saved_kernel(unpack(pack({ABOUT: about, PATHS: paths}))).tracefs.names("events"))


def _mappings(data: bytes, directory: Path) -> bool:
    """Look up a stack of 100 places in a process with these mappings."""
    for path in ("self/ns", "1"):
        (directory / path).mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (directory / "self/ns/pid").symlink_to(INITIAL)
    (directory / "1/maps").write_bytes(data)
    with closing(Programs(directory)) as running:
        places = running.frames(1, tuple(range(0x401000, 0x501000, 0x2900)))
    return any(place != UNKNOWN for place in places)


def _compiled(data: bytes, directory: Path) -> bool:
    """Look up 100 places in a list of compiled functions."""
    file = directory / "perf-1.map"
    file.write_bytes(data)
    OVERRUNS.clear()
    return bool(perf_map.functions_at(str(file), range(0x401000, 0x501000, 0x2900), 1))


def _live(data: bytes, _: Path) -> bool:
    return any(LineParser(known).feed(data).records for known in (layouts(), stacked()))


def _trace_texts() -> Sequence[bytes]:
    return [one.data[: 1 << 14] for one in captured("trace_pipe")]


READERS: Mapping[str, Reader] = {
    "elf": Reader(lambda: [*programs(), crafted()], _elf, Line(1.5, 10.0, 64, 256), (GrammarError,)),
    "btf": Reader(
        lambda: [_TYPES],
        lambda data, _: read_prototypes(_btf(data), ("f", "g")),
        Line(0.5, 10.0, 16, 128),
        (GrammarError,),
    ),
    "notes": Reader(
        lambda: [_NOTE * 4],
        lambda data, _: any([*parse_notes(data, "<", wide=True)]),
        Line(0.5, 10.0, 16, 128),
        (GrammarError,),
    ),
    "loader-cache": Reader(
        lambda: [_ENTRY.pack(0, 0, 1, 0, 0) * 4], _cache, Line(0.5, 5.0, 8, 32), (ValueError,)
    ),
    "archive": Reader(
        lambda: [b"events\nevents/sched/sched_switch\nevents/sched/sched_switch/format\n", b"events/a/"],
        _archive,
        Line(1.0, 10.0, 320, 256),
        (GrammarError,),
    ),
    "mappings": Reader(lambda: [_MAPPINGS], _mappings, Line(0.5, 10.0, 16, 64)),
    "perf-map": Reader(
        lambda: [b"400000 2000 py::f:/a.py\n401000 100000 JS:*g /b.js:1:2\n"],
        _compiled,
        Line(0.5, 10.0, 16, 64),
    ),
    "saved-tgids": Reader(_TGIDS.material, _TGIDS.read, Line(0.3, 2.0, 16, 128)),
    "live-text": Reader(_trace_texts, _live, Line(0.5, 5.0, 32, 128)),
    "saved-text": Reader(_trace_texts, lambda data, _: saved(data), Line(0.5, 8.0, 32, 256)),
    "yaml": Reader(
        lambda: [DEFAULT.read_bytes(), b"[a, b]", b"- {a: b}\n- 'c'\n"],
        lambda data, _: YamlSource("f", data).data,
        Line(4.0, 2.0, 64, 128),
        (ConfigError,),
    ),
}
"""All readers by their names. A line is above the most that was measured, by a factor for slow machines."""

TLS = "tls"
TLS_LINE = Line(0.5, 2.0, 16, 64)
"""For what a client sends instead of a handshake, by a whole server and its client."""


@cache
def material(what: str) -> Sequence[bytes]:
    return [hello()] if what == TLS else READERS[what].material()


def make(random: Random) -> Input:
    what = random.choice((*READERS, TLS))
    return Input(what, repeated(random, random.choice(material(what))))


def repeated(random: Random, data: bytes) -> bytes:
    """Return the data with a piece of it many times, and perhaps with its numbers set to extremes."""
    size = int(2 ** random.uniform(0, MAX_BITS))
    start = random.randrange(len(data))
    piece = data[start : start + random.randint(1, MAX_PIECE)]
    if random.random() < 0.25:
        piece = bytes(random.choice((0, 0xFF, byte)) for byte in piece)
    return data[: start + len(piece)] + piece * (size // len(piece)) + data[start + len(piece) :]


@contextmanager
def taking() -> Iterator[Take]:
    with ExitStack() as stack:
        directory = stack.enter_context(scratch())
        handshake = stack.enter_context(http.taking())

        def take(given: Input) -> bool:
            if given.what == TLS:
                with spending(TLS_LINE, len(given.data)):
                    return handshake(Input("hello", given.data))
            reader = READERS[given.what]
            with suppress(*reader.refusals), spending(reader.line, len(given.data)):
                return bool(reader.read(given.data, directory))
            return False

        yield take


TARGET = Target("cost", make, taking)
