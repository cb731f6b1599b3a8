"""Fuzzes both parsers of trace text, the agent's and that of saved text, with what kernels wrote."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice, pairwise
from random import Random

from kprobe_exporter.model.records import Layout
from kprobe_exporter.replay.parser import SavedParser
from kprobe_exporter.source.lines import LineParser
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Input, Take, Target
from tests.support.captured_text import LAYOUTS, captured_layout, line
from tests.unit.captured import FIXTURES, captured

LINES = (3, 3, 3, 12)
"""Lines in the pieces of material, in turn: short ones are read quickly, so that more are."""

LONGEST = 1 << 12
"""Most bytes of an input. The target `cost` has longer ones."""

WORDS = (
    *(b"CPU:0 [LOST 3 EVENTS]\n", b"CPU:99999 [LOST EVENTS]\n", b" <stack trace>\n"),
    b" => vfs_read+0x1/0x2\n",
    *(b"(fault)", b'" comm="', b'="', b"-1234    [001] .....    12.345678: ", b" (-------) ", b"(f+0x0/0x1)"),
    *(b" <- vfs_read)", b" -> 0x", b"sys_openat(", b" " * 16, b"# tracer: nop\n", b'{"a",(fault)}'),
    b"{0x1,0x2}",
)


@cache
def texts() -> Mutator:
    files = [stream.data for stream in captured("trace_pipe/")]
    files += [file.read_bytes() for file in sorted(FIXTURES.glob("documents/*.txt"))]
    lines = [file.splitlines(keepends=True) for file in files]
    pieces = [piece for of_file in lines for piece in _cut(of_file)]
    pieces += [
        line(b'p: (f) count=3 comm="\xffx"', b"a\nb"),
        line(b'r: (ksys_read+0x75/0x100 <- vfs_read) return=-1 comm="a\nb"', b" \n "),
        line(b'two: (f+0x0/0x1) count=-3 path="/etc/\xffpasswd" comm="x y"') * 3,
        line(b'mixed: (f+0x0/0x1) sym=a+0x1/0x2 names={"a","b"} comm="c"'),
    ]
    return Mutator(pieces, WORDS, LONGEST)


def _cut(lines: list[bytes]) -> Iterator[bytes]:
    """The lines in pieces of changing lengths."""
    rest, lengths = iter(lines), cycle(LINES)
    while piece := b"".join(islice(rest, next(lengths))):
        yield piece


@cache
def layouts() -> tuple[Layout, ...]:
    """The layouts of the unit tests, and of each captured event."""
    known = {one.event: one for one in (*LAYOUTS, *map(captured_layout, captured("trace_pipe/")))}
    return tuple(replace(one, layout_id=layout_id) for layout_id, one in enumerate(known.values()))


@cache
def stacked() -> tuple[Layout, ...]:
    """The same layouts with a stack after each event, twice."""
    known = [replace(one, stack=True) for one in layouts()]
    return (*known, *(replace(one, layout_id=one.layout_id + len(known)) for one in known))


def make(random: Random) -> Input:
    return Input(random.choice(("live", "stacked", "saved")), texts()(random))


def pieces(data: bytes) -> Iterator[bytes]:
    """The bytes as reads of a pipe may split them, which depends on the bytes alone."""
    random = Random(zlib.crc32(data))
    inner = (random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 3))))
    edges = sorted([0, len(data), *inner])
    yield from (data[start:end] for start, end in pairwise(edges))


def saved(data: bytes) -> int:
    """Return how many records a saved text has."""
    parser = SavedParser()
    return sum(len(parser.feed(piece).records) for piece in pieces(data)) + len(parser.finish().records)


@contextmanager
def taking() -> Iterator[Take]:
    def live(data: bytes, unused: LineParser) -> int:
        parser = copy(unused)  # to make the patterns of all layouts again would take most of the time
        parser.resume_from(LineParser())
        batches = [parser.feed(piece) for piece in pieces(data)]
        assert all(loss.start <= loss.end for batch in batches for loss in batch.losses)
        return sum(len(batch.records) for batch in batches)

    readers: dict[str, Callable[[bytes], int]] = {
        "live": partial(live, unused=LineParser(layouts())),
        "stacked": partial(live, unused=LineParser(stacked())),
        "saved": saved,
    }

    def take(given: Input) -> bool:
        return readers[given.what](given.data) > 0

    yield take


TARGET = Target("trace-text", make, taking)
