"""trace.table: the table fits the terminal, and no text in it controls the terminal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.snapshot import HistogramValue
from kprobe_exporter.trace.count import DURATIONS, RETURNS, CountRow, CountTable
from kprobe_exporter.trace.table import columns, draw

COLOR = re.compile("\x1b\\[[0-9;]*m")


def table(**changed: object) -> CountTable:
    counts = [0] * (len(DURATIONS) + 1)
    counts[3:6] = [4, 8, 1]
    given: dict[str, object] = {
        "title": "call:vfs_read",
        "seconds": 3.2,
        "rows": (CountRow("vfs_read", 12.4, 1234, {"EBADF": 3, "EIO": 1}, 2),),
        "rates": (1.0, 4.0, 8.0),
        "histogram": HistogramValue(DURATIONS, tuple(counts), 1.0),
        "what": "duration",
        "lost": {},
    }
    return CountTable(**(given | changed))  # type: ignore[arg-type]


def test_all_of_it() -> None:
    assert draw(table(), 60, 20, color=False) == [
        "call:vfs_read                                       ▂▅█  3 s",
        "",
        "probe         hits/s          hits      errors    missed",
        "vfs_read          12         1,234           4         2",
        "",
        "errors: EBADF 3, EIO 1",
        "",
        "duration  count",
        "  ≤ 8 µs      4  ████████████████████",
        " ≤ 16 µs      8  ████████████████████████████████████████",
        " ≤ 32 µs      1  █████",
    ]


def test_groups_come_before_the_histogram() -> None:
    groups = tuple(((f"a\n{number}", "x"), 2000 - number) for number in range(25))
    lines = draw(table(by=("comm", "errno"), groups=groups), 60, 90, color=False)
    at = lines.index("      events  by comm, errno")
    assert lines[at + 1 : at + 3] == ["       2,000  a\\n0, x", "       1,999  a\\n1, x"]
    assert lines[at + 21 : at + 24] == ["              and 5 more", "", "duration  count"]


def test_return_values() -> None:
    counts = [0] * (len(RETURNS) + 1)
    counts[0], counts[2], counts[5], counts[-1] = 1, 2, 3, 4
    returned = table(histogram=HistogramValue(RETURNS, tuple(counts), 1.0), what="return value")
    lines = draw(returned, 60, 90, color=False)
    shown = [line.strip().split("  ")[0] for line in lines[8:]]
    assert shown[:6] == ["0", "1", "2", "3 to 4", "5 to 8", "9 to 16"]
    assert shown[-1] == "> 1,099,511,627,776"


def test_lost_and_unknown_events() -> None:
    lines = draw(
        table(lost={"overrun": 7}, histogram=None, rows=(CountRow("x", 0, 0, {}, None),)), 60, 20, color=False
    )
    assert "lost: overrun 7" in lines
    assert lines[3] == "x               0             0           0"


def test_rows_for_which_there_is_no_room() -> None:
    rows = tuple(CountRow(f"f{number}", 1, 1, {}, 0) for number in range(30))
    assert "and 26 more" in draw(table(rows=rows), 60, 10, color=False)


FIGURES = ["1,234", "123,456", "7", "12"]


@pytest.mark.parametrize("width", [53, 60, 79, 300])
@pytest.mark.parametrize("length", [1, 5, 6, 31, 32, 42, 63, 512])
def test_a_long_name_leaves_room_for_the_figures(length: int, width: int) -> None:
    """A cut name keeps its beginning and its end, as functions of one pattern have one of them in common."""
    name = f"{'a' * (length // 2)}{'z' * (length - length // 2)}"
    rows = (CountRow(name, 1234, 123456, {"EIO": 7}, 12), CountRow("x", 0, 0, {}, 0))
    _, _, header, first, second, *_ = draw(table(rows=rows), width, 20, color=False)
    assert header.split() == ["probe", "hits/s", "hits", "errors", "missed"]
    shown, *figures = first.split()
    assert figures == FIGURES
    assert len(header) == len(first) == len(second) <= width
    if len(name) <= width - 48:
        assert shown == name
    else:
        assert len(first) == width
        begin, end = shown.split("…")
        assert name.startswith(begin)
        assert name.endswith(end)
        assert 0 <= len(begin) - len(end) <= 1


@given(st.text(min_size=1))
def test_the_width_at_which_a_name_is_whole(name: str) -> None:
    shown = table(rows=(CountRow(name, 1, 1, {}, 0), CountRow("x", 1, 1, {}, 0)))
    rows = draw(shown, max(53, columns(shown)), 20, color=False)[3:5]
    assert rows[0].startswith(one_line(name))
    assert rows[0].split()[-4:] == ["1", "1", "0", "0"]


BUCKETS = len(DURATIONS) + 1
TABLES = st.builds(
    table,
    title=st.text(),
    rows=st.text().map(lambda name: (CountRow(name, 1.0, 1, {}, None),) * 3),
    rates=st.lists(st.floats(0, 1e12)).map(tuple),
    histogram=st.lists(st.integers(0, 1 << 62), min_size=BUCKETS, max_size=BUCKETS).map(
        lambda counts: HistogramValue(DURATIONS, tuple(counts), 1.0)
    ),
    lost=st.dictionaries(st.sampled_from(["overrun", "dropped"]), st.integers(1)),
)


@given(shown=TABLES, width=st.integers(20, 300), height=st.integers(4, 90), color=st.booleans())
def test_it_fits_and_steers_nothing(shown: CountTable, width: int, height: int, color: bool) -> None:
    lines = [COLOR.sub("", line) for line in draw(shown, width, height, color=color)]
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
