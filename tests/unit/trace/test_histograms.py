"""trace.histograms: the lines of a histogram, from the first to the last bucket that has a value."""

import pytest

from kprobe_exporter.model.snapshot import HistogramValue
from kprobe_exporter.trace.histograms import bars, histogram_lines, histogram_object
from kprobe_exporter.trace.interval_numbers import Histogram

MICROSECONDS = tuple(2**power / 1e6 for power in range(24))


def value(bounds: tuple[float, ...], **counts: int) -> HistogramValue:
    found = [counts.get(f"n{number}", 0) for number in range(len(bounds) + 1)]
    return HistogramValue(bounds, tuple(found), 1.5)


def test_powers_of_two() -> None:
    """A bucket has what is above the bound before it, up to its own."""
    assert list(bars(value(MICROSECONDS, n0=1, n2=40, n3=10), "us")) == [
        "     usecs               : count     distribution",
        "         0 -> 1          : 1        |*                                       |",
        "         2 -> 2          : 0        |                                        |",
        "         3 -> 4          : 40       |****************************************|",
        "         5 -> 8          : 10       |**********                              |",
    ]


@pytest.mark.parametrize(
    ("bounds", "counts", "unit", "ranges"),
    [
        ((0.0, 10.0, 20.0), {"n1": 1, "n3": 2}, None, ["1 -> 10", "11 -> 20", "21 -> ..."]),
        ((0.5, 1.5), {"n0": 1, "n2": 1}, None, ["0 -> 0.5", "0.5 -> 1.5", "1.5 -> ..."]),
        ((-1.0, 0.0), {"n0": 1, "n1": 1}, None, ["... -> -1", "0 -> 0"]),
        ((1024.0, 4096.0), {"n1": 1}, "KB", ["2 -> 4"]),
        ((0.001, 0.01), {"n1": 1}, "ms", ["2 -> 10"]),
    ],
)
def test_ranges(bounds: tuple[float, ...], counts: dict[str, int], unit: None, ranges: list[str]) -> None:
    _, *lines = bars(value(bounds, **counts), unit)
    assert [" ".join(line.partition(" :")[0].split()) for line in lines] == ranges


def test_each_label_set() -> None:
    """Its labels stand above it, and the metric's name if there are several."""
    one = value(MICROSECONDS, n0=1)
    found = histogram_lines([Histogram("a", {"disk": "sda\x1b"}, one), Histogram("b", {}, one)], "us")
    assert [line for line in found if line and "->" not in line and "usecs" not in line] == [
        "a, disk = sda\\x1b",
        "b",
    ]
    assert histogram_lines([Histogram("a", {}, one)], "us")[1].strip().startswith("usecs")


def test_an_object() -> None:
    assert histogram_object(Histogram("a", {"disk": "sda"}, value((1.0,), n0=2, n1=3))) == {
        "name": "a",
        "labels": {"disk": "sda"},
        "count": 5,
        "sum": 1.5,
        "buckets": [{"le": 1.0, "count": 2}, {"le": None, "count": 3}],
    }
