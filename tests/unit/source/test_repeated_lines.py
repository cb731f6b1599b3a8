"""Lines that are only counted: whatever the text, the numbers are those of the records that Python reads."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.sums import Sums
from kprobe_exporter.model.aggregation import Group, Recipe, Where
from kprobe_exporter.model.records import Batch, Layout
from kprobe_exporter.model.specs import PROCESS
from kprobe_exporter.model.values import Arg, ReturnType
from kprobe_exporter.source import lines
from kprobe_exporter.source.lines import LineParser, TextPipe
from tests.support.captured_text import captured_layout
from tests.unit.captured import Captured, captured

compiled: Any = pytest.importorskip("kprobe_exporter.source._lines")

LONG = ReturnType("long", "s64", signed=True, wide=True)
OPEN = Layout(1, "open", "open", "entry", "f", (Arg("dfd", "int"), Arg("name", "str")))
BACK = Layout(2, "back", "back", "return", "f", (Arg("return", "int"),), LONG)
SEEK = Layout(
    3,
    "seek",
    "sys_exit_lseek",
    "tracepoint",
    "lseek",
    (Arg("return", "hex", 64),),
    LONG,
    b"0x([0-9a-f]{1,16})",
)
ALONE = Layout(4, "alone", "alone", "entry", "f", (Arg("a", "int"),))
LAYOUTS = (OPEN, BACK, SEEK, ALONE)

NOT_NEGATIVE = Where(("return",), ("number", "return", ">=", 0))
RECIPES = {
    1: Recipe((Group(0, ("name", "tid")), Group(1, ("dfd",), "dfd"))),
    2: Recipe(
        (Group(0, ("cpu", "caller")), Group(1, (), "return", (0, 10), where=NOT_NEGATIVE)), NOT_NEGATIVE
    ),
    3: Recipe((Group(0, ("return",)), Group(1, (), "return", (1, 100)))),
}
"""ALONE has none: something needs its records."""


def line(tid: int, cpu: int, micros: int, flags: bytes, body: bytes) -> bytes:
    seconds, rest = divmod(micros, 1_000_000)
    return b"%16s-%-7d [%03d] %s %5d.%06d: %s\n" % (b"cat", tid, cpu, flags, seconds, rest, body)


BODIES = st.sampled_from(
    [
        b'open: (f+0x0/0x1) dfd=3 name="/etc/passwd"',
        b'open: (f+0x0/0x1) dfd=-100 name="a b"',
        b"open: (f+0x0/0x1) dfd=(fault) name=(fault)",
        b'open: (f+0x0/0x1) dfd=3 name="x" name="y"',
        b"open: (f+0x0/0x1) dfd=x",
        b"back: (g+0x1/0x2 <- f) return=0x3",
        b"back: (h+0x1/0x2 <- f) return=-2",
        b"back: (g+0x1/0x2 <- f) return=4294967294",
        b"sys_lseek -> 0x3",
        b"sys_lseek -> 0xfffffffffffffffe",
        b"alone: (f+0x0/0x1) a=1",
        b"unknown: (f+0x0/0x1) a=1",
        b"",
    ]
)
FLAGS = st.sampled_from([b"d..1.", b".....", b"d..1", b"...", b"1..1.", b"d\x0b..1"])
LINES = st.builds(
    line, st.integers(0, 3), st.sampled_from([0, 1, 8191, 8192, 10**10]), st.integers(0, 50), FLAGS, BODIES
)
OTHERS = st.sampled_from(
    [
        b"CPU:1 [LOST 7 EVENTS]\n",
        b"CPU:0 [LOST EVENTS]\n",
        b"# comment\n",
        b"\n",
        b"garbage\n",
        line(1, 1, 5, b"d..1.", b"sys_lseek -> 0x3")[:-9] + b"\n",
        b"a\nb             -1       [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-1       (    70) [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-1       (-----) [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-1       (70 ) [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-1       () [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-1       (-7) [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-1       (12345678901) [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-99999999999 [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-4294967296  [000] d..1.     0.000003: sys_lseek -> 0x3\n",
        b"             cat-1       [000] d..1.     0.0000003: sys_lseek -> 0x3\n",
        b"             cat-1       [000] d..1. 1234567890123.000003: sys_lseek -> 0x3\n",
    ]
)


@dataclass
class Seen:
    """All that a parser gave, in a form in which the order of tallies does not matter."""

    events: Counter[int] = field(default_factory=Counter)
    sums: Counter[object] = field(default_factory=Counter)
    unparsed: int = 0
    lost: int = 0
    losses: list[object] = field(default_factory=list)
    records: list[object] = field(default_factory=list)


def seen(
    batches: Iterable[Batch],
    layouts: Sequence[Layout] = LAYOUTS[:3],
    recipes: Mapping[int, Recipe] = RECIPES,
) -> Seen:
    found = Seen()
    sums = {layout.layout_id: Sums(layout, recipes[layout.layout_id]) for layout in layouts}
    for batch in batches:
        found.unparsed += batch.unparsed
        found.lost += batch.lost
        found.losses += batch.losses
        for record in batch.records:
            if record[0] in sums:
                sums[record[0]].add(record)
            else:
                found.records.append(record)
        for record, number in batch.repeated:
            sums[record[0]].repeat(record, number)
    for layout_id, one in sums.items():
        arrived, passed, tallies = one.take()
        found.events[layout_id] += arrived * 1_000_000 + passed
        for tally in tallies:
            found.sums[tally] += 1
    return found


def cut(text: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(
    st.lists(st.one_of(LINES, LINES, LINES, OTHERS), max_size=60), st.lists(st.integers(0, 10**6), max_size=5)
)
def test_the_numbers_are_those_of_the_records(text: list[bytes], places: list[int]) -> None:
    parts = cut(b"".join(text * 2), places)
    model, parser = LineParser(LAYOUTS), LineParser(LAYOUTS, recipes=RECIPES)
    assert parser._repeated is not None
    expected = seen([model.feed(part) for part in parts])
    assert seen([*(parser.feed(part) for part in parts), parser.take()]) == expected


@pytest.mark.parametrize("stream", captured("trace_pipe/"), ids=str)
def test_what_kernels_wrote_is_counted_as_it_is_read(stream: Captured) -> None:
    layout = captured_layout(stream)
    if layout.stack:
        return  # its lines belong to one event each
    names = [arg.name for arg in layout.args if arg.name != "pid"]  # which is the process
    numbers = [Group(0, ("tid", "cpu", "caller", *names)), *(Group(1, (), name) for name in names)]
    recipes = {layout.layout_id: Recipe(tuple(numbers))}
    model, parser = LineParser([layout]), LineParser([layout], recipes=recipes)
    parts = [stream.data] * 3
    expected = seen([model.feed(part) for part in parts], [layout], recipes)
    batches = [*(parser.feed(part) for part in parts), parser.take()]
    assert seen(batches, [layout], recipes) == expected
    assert sum(number for _, number in batches[-1].repeated) >= len(batches[0].records)


def test_lines_that_came_before_are_not_read_again() -> None:
    parser = LineParser(LAYOUTS, recipes=RECIPES)
    same = b"".join(line(tid, 1, tid, b"d..1.", b"sys_lseek -> 0x3") for tid in range(100))
    batch = parser.feed(same)
    assert len(batch.records) == 1
    [(record, number)] = parser.take().repeated
    assert (record[0], record[-1], number) == (3, 3, 99)
    assert parser.take() == Batch()


def test_threads_and_cpus_are_told_apart_where_they_are_used() -> None:
    parser = LineParser(LAYOUTS, recipes=RECIPES)
    body = b'open: (f+0x0/0x1) dfd=3 name="a"'
    parser.feed(b"".join(line(tid, cpu, 1, b"d..1.", body) for tid in (7, 8, 8) for cpu in (0, 1)))
    counted = {(record[2], record[3]): number for record, number in parser.take().repeated}
    assert {tid: sum(n for (_, one), n in counted.items() if one == tid) for tid in (7, 8)} == {7: 1, 8: 4}


@pytest.mark.parametrize(
    "last",
    [
        Recipe((Group(0, ("return",), "return", last=True),)),
        Recipe((Group(0, ("tid",), cgroups=(0,)),)),
        Recipe((Group(0, ("pid",)),)),
        Recipe((Group(0, ("return", PROCESS)),)),
    ],
)
def test_what_depends_on_the_order_or_the_process_is_read(last: Recipe) -> None:
    assert LineParser(LAYOUTS, recipes={3: last})._repeated is None


@pytest.mark.parametrize(("each", "kept"), [(1, False), (3, True)])
def test_where_lines_hardly_repeat_it_is_switched_off(each: int, kept: bool) -> None:
    """A table that is full begins again if it was of use."""
    parser = LineParser(LAYOUTS, recipes=RECIPES)
    text = b"".join(
        line(1, 1, 1, b"d..1.", b"sys_lseek -> %#x" % number) for number in range(16_500) for _ in range(each)
    )
    batch = parser.feed(text)
    assert (parser._repeated is not None) == kept
    batch.repeated += parser.take().repeated
    assert len(batch.records) + sum(number for _, number in batch.repeated) == 16_500 * each


def test_a_line_beyond_the_longest_is_not_counted() -> None:
    body = b'open: (f+0x0/0x1) dfd=3 name="%s"'
    parser, model = LineParser(LAYOUTS, recipes=RECIPES), LineParser(LAYOUTS)
    for length in (lines.LONGEST - 200, lines.LONGEST + 1):
        text = line(1, 1, 1, b"d..1.", body % (b"x" * length)) * 2
        batches = [parser.feed(text), parser.take()]
        assert seen(batches) == seen([model.feed(text)])


def test_the_bounds_are_those_of_the_python_parser() -> None:
    source = (lines.__file__ or "").replace("lines.py", "_lines.pyx")
    with open(source) as file:
        text = file.read()
    for name in ("NAME_COLUMNS", "LONGEST", "MOST_CPUS"):
        assert f"    {name} = {getattr(lines, name)}" in text


@pytest.mark.parametrize(("start", "end"), [(0, 5), (3, 2), (5, 6)])
def test_a_text_outside_of_the_data_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="outside of the data"):
        compiled.LineCounter().learn(b"abcd", start, end, False, False)
    with pytest.raises(ValueError, match="outside of the data"):
        compiled.LineCounter().scan(b"abcd", 0, 5)


def test_a_round_ends_with_what_was_counted(tmp_path: Any) -> None:
    text = tmp_path / "trace_pipe"
    text.write_bytes(line(1, 1, 1, b"d..1.", b"sys_lseek -> 0x3") * 3000)
    batches: list[Batch] = []
    with text.open("rb") as file:
        TextPipe(os.dup(file.fileno()), LineParser(LAYOUTS, recipes=RECIPES), batches.append).empty(
            last=False
        )
    assert sum(len(batch.records) for batch in batches) == 1
    assert [number for batch in batches for _, number in batch.repeated] == [2999]
