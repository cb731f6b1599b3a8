"""trace.interval_numbers: what numbers grew by, as the rows of a table."""

from collections.abc import Mapping

import pytest

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.model.snapshot import Family, HistogramValue
from kprobe_exporter.tools.columns import Column, column_of
from kprobe_exporter.tools.tool_model import ColumnModel
from kprobe_exporter.trace.interval_numbers import Interval, Row, ordered, table


def families(scale: int) -> tuple[Family, ...]:
    """Return families whose numbers are in proportion to ``scale``."""
    spread = HistogramValue((1.0, 2.0), (scale, 0, scale), 0.5 * scale)
    by_key: dict[tuple[str, ...], float | HistogramValue] = {
        ("1", "a"): 10.0 * scale,
        ("2", "b"): 30.0 * scale,
        ("2", "c"): 5.0 * scale,
    }
    return (
        Family("kprobe_hits_total", "counter", "", ("probe",), {("hit",): 999.0}),
        Family("kprobe_bytes_total", "counter", "", ("pid", "comm"), by_key),
        Family("kprobe_io_seconds", "histogram", "", ("pid", "comm"), {("1", "a"): spread}),
        Family("kprobe_depth", "gauge", "", ("pid", "comm"), {("1", "a"): 7.0}),
    )


def interval(counted: Mapping[str, int], scale: int = 1, before: Interval | None = None) -> Interval:
    numbers = Numbers(families(scale), {}, {}, {}, {}, {}, {}, 0)
    scales = {"kprobe_io_seconds": 1e-9}
    return Interval(numbers, counted, 2.0 * scale, before, "kprobe", scales, {"hit": "vfs_read"})


FIRST = interval({"hit": 100, "miss": 25})
SECOND = interval({"hit": 190, "miss": 35}, 3, FIRST)


def columns(**written: str | dict[str, object]) -> list[Column]:
    return [
        column_of(title, one if isinstance(one, str) else ColumnModel(**one))  # type: ignore[arg-type]
        for title, one in written.items()
    ]


def rows(found: Interval, **written: str | dict[str, object]) -> list[Row]:
    made = columns(**written)
    return ordered(table(found, made), made, None)


def test_a_row_for_each_label_set() -> None:
    assert rows(FIRST, PID="pid", COMM="comm", BYTES="bytes_total") == [
        ("2", "b", 30),
        ("1", "a", 10),
        ("2", "c", 5),
    ]


def test_labels_that_are_not_shown_are_added_up() -> None:
    assert rows(FIRST, PID="pid", BYTES="bytes_total") == [("2", 35), ("1", 10)]


def test_what_grew() -> None:
    """A gauge keeps its value."""
    assert rows(SECOND, PID="pid", BYTES="bytes_total", DEPTH="depth") == [("2", 70, 0), ("1", 20, 7)]


def test_nothing_grew() -> None:
    assert rows(interval({}, 1, FIRST), PID="pid", BYTES="bytes_total") == []


def test_a_histogram_has_a_count_and_a_sum() -> None:
    """The sum is in the unit of the field that is added up: nanoseconds."""
    found = rows(FIRST, COMM="comm", N="io_seconds_count", MEAN="io_seconds_sum / io_seconds_count")
    assert found == [("a", 2, 250_000_000)]


def test_a_ratio_of_probes() -> None:
    """Without a label there is one row, in which a probe's name is the number of its events."""
    ratio = {"value": "10000 * hit / (hit + miss)", "scale": 0.01}
    assert rows(FIRST, HIT="hit", RATIO=ratio) == [(100, 8000)]
    assert rows(SECOND, HIT="hit", RATIO=ratio) == [(90, 9000)]
    assert columns(RATIO=ratio)[0].text(8000) == "80.00"


def test_a_number_of_the_machine() -> None:
    found = FIRST._replace(facts={"meminfo_cached": 4096})
    assert rows(found, CACHED="meminfo_cached", HITS="hit") == [(4096, 100)]


def test_a_division_by_zero_has_no_value() -> None:
    assert rows(interval({}), RATIO="100 * hit / (hit + miss)") == [(None,)]


def test_by_second() -> None:
    assert rows(SECOND, HITS={"value": "hit", "per_second": True}) == [(90 / 4,)]


def test_a_row_for_each_probe() -> None:
    """A probe is shown by its target."""
    assert rows(FIRST, FUNC="probe", COUNT="hits_total") == [("vfs_read", 100), ("miss", 25)]


@pytest.mark.parametrize(("sort", "first"), [("PID", "1"), ("BYTES", "2"), ("N", "1"), (None, "2")])
def test_order(sort: str | None, first: str) -> None:
    made = columns(PID="pid", BYTES="bytes_total", N="io_seconds_count")
    assert ordered(table(FIRST, made), made, sort)[0][0] == first


def test_histograms_that_grew() -> None:
    (found,) = SECOND.histograms(["io_seconds"])
    assert found.labels == {"pid": "1", "comm": "a"}
    assert found.value.counts == (2, 0, 2)
    assert found.value.sum == 1.0
    assert interval({}, 1, FIRST).histograms(["io_seconds"]) == []
