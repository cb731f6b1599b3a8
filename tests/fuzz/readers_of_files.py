"""Readers of binaries: BTF of a kernel and of a module, and ELF files."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from kprobe_exporter.btf import read_prototypes
from kprobe_exporter.elf import file_offset, functions, locate
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from tests.fuzz.material import programs
from tests.fuzz.reader import Reader
from tests.support.btf_samples import SAMPLE, UNKNOWN, sample, with_an_unknown_type

MANY = [*"fg", *(f"name{number}" for number in range(100))]
"""Enough names for the lookup that read_prototypes uses for many."""

SYMBOLS = ("main", "twice", "answer", "answer@VERS_1", "forgotten", "puts", "late", "table", "nobody", "")
MOST = 1000


def _with_layout() -> Sequence[bytes]:
    """Blobs with a table of the sizes of each kind of type."""
    layout = [(0, 0)] * UNKNOWN + [(4, 8)]
    return [with_an_unknown_type().data(layout=layout), sample().data(layout=layout)]


def _btf(data: bytes, _: Path) -> bool:
    with suppress(GrammarError):
        read_prototypes(data, MANY)
    with suppress(GrammarError):
        read_prototypes(SAMPLE, "fg", data)
    return bool(read_prototypes(data, "fg"))


def _module_btf(data: bytes, _: Path) -> bool:
    with suppress(GrammarError):
        read_prototypes(data, MANY, SAMPLE)
    return bool(read_prototypes(data, "fg", SAMPLE))


def _elf(data: bytes, directory: Path) -> bool:
    file = directory / "program"
    file.write_bytes(data)
    found = 0
    for symbol in SYMBOLS:
        with suppress(GrammarError):
            found += file_offset(str(file), symbol, 0) >= 0
    with suppress(GrammarError):
        list(islice(functions(str(file)), MOST))
    with suppress(GrammarError):
        locate(parse_target(f"uretprobe:{file}:main"))
    return found > 0


READERS: Mapping[str, Reader] = {
    "btf": Reader(lambda: [SAMPLE, *_with_layout()], _btf, (GrammarError,)),
    "module_btf": Reader(lambda: [SAMPLE], _module_btf, (GrammarError,)),
    "elf": Reader(programs, _elf),
}
