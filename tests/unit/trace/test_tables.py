"""trace.tables: the lines of each interval: tables, one line an interval, histograms, JSON and CSV."""

import csv
import json
from datetime import UTC, datetime

import pytest

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.model.snapshot import Family, HistogramValue
from kprobe_exporter.tools.columns import Column, column_of
from kprobe_exporter.tools.tool_model import ColumnModel, View
from kprobe_exporter.trace.interval_numbers import Interval
from kprobe_exporter.trace.rows import Display
from kprobe_exporter.trace.tables import TableView

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAMES = ("a\x1b", "b", "c")


def interval(times: int, before: Interval | None = None) -> Interval:
    counts: dict[tuple[str, ...], float | HistogramValue] = {
        ("7", name): 10.0 * number * times for number, name in enumerate(NAMES, 1)
    }
    spread = HistogramValue((1.0, 2.0), (times, 0, 0), 0.5)
    families = (
        Family("kprobe_n_total", "counter", "", ("pid", "comm"), counts),
        Family("kprobe_size", "histogram", "", (), {(): spread}),
    )
    numbers = Numbers(families, {}, {}, {}, {}, {}, {}, 0)
    return Interval(numbers, {"hit": 4 * times}, float(times), before, "kprobe", {}, {})


FIRST = interval(1)
SECOND = interval(3, FIRST)
BY_NAME = (
    column_of("PID", "pid"),
    column_of("COMM", ColumnModel(field="comm", width=6)),
    column_of("N", "n_total"),
)
ALONE = (column_of("HIT", "hit"),)


def lines(*columns: Column, view: View = "counts", **how: object) -> list[str]:
    """Return the lines of two intervals."""
    made = TableView(view, columns, None, None, Display(**how))  # type: ignore[arg-type]
    return [line for each in (FIRST, SECOND) for line in made.lines(each, ["size"], NOW)]


def test_a_table_an_interval() -> None:
    assert lines(*BY_NAME) == [
        "PID     COMM   N",
        "7       c      30",
        "7       b      20",
        "7       a\\x1b  10",
        "",
        "PID     COMM   N",
        "7       c      60",
        "7       b      40",
        "7       a\\x1b  20",
    ]


def test_columns_are_as_wide_as_their_texts() -> None:
    narrow = (column_of("COMM", ColumnModel(field="comm", width=1)), column_of("N", "n_total"))
    assert lines(*narrow)[:2] == ["COMM  N", "c     30"]


def test_a_line_an_interval() -> None:
    """A table without a label has one header."""
    assert lines(*ALONE) == ["HIT", "4", "8"]
    assert lines(*ALONE, timestamp=True) == ["TIME     HIT", "03:04:05 4", "03:04:05 8"]


def test_the_first_rows() -> None:
    assert [line[:9] for line in lines(*BY_NAME, most=1) if "7" in line] == ["7       c"] * 2


def test_a_top_on_a_terminal_is_redrawn() -> None:
    """So no empty line is between; it is cut to the terminal's width."""
    assert "" not in lines(*BY_NAME, view="top", width=80)
    assert lines(*BY_NAME, view="top", width=10)[1] == "7       c "
    assert "" in lines(*BY_NAME, view="top")


def test_objects() -> None:
    first, second = map(json.loads, lines(*BY_NAME, form="json"))
    assert first["time"] == "2026-01-02T03:04:05+00:00"
    assert second["seconds"] == 2.0
    assert first["rows"][0] == {"pid": 7, "comm": "c", "n": 30}
    assert [json.loads(line)["hit"] for line in lines(*ALONE, form="json")] == [4, 8]


def test_comma_separated() -> None:
    head, *found = csv.reader(lines(*BY_NAME, form="csv"))
    assert head == ["TIME", "PID", "COMM", "N"]
    assert [row[1:] for row in found][:2] == [["7", "c", "30"], ["7", "b", "20"]]
    assert len(found) == 6


@pytest.mark.parametrize("timestamp", [True, False])
def test_histograms(timestamp: bool) -> None:
    found = lines(view="hist", timestamp=timestamp)
    assert found.count("03:04:05") == 2 * timestamp
    assert [line.split(":")[1].split()[0] for line in found if "->" in line] == ["1", "2"]


def test_histograms_as_objects() -> None:
    first, second = map(json.loads, lines(view="hist", form="json"))
    assert [one["histograms"][0]["count"] for one in (first, second)] == [1, 2]
