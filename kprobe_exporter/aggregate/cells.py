"""The cells that hold the values of metrics, and how a tally changes them."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kprobe_exporter.aggregate.recipes import NANOSECONDS, whole_scale
from kprobe_exporter.aggregate.series import Series, SeriesLimits
from kprobe_exporter.model.aggregation import DURATIONS, RETURN_ERRORS, RETURN_VALUES, Tally
from kprobe_exporter.model.values import Exemplar, HistogramValue, MetricSpec

Take = Callable[[Tally], None]


class HistogramCell:
    """Counts per bucket (the last is +Inf) and the sum of one label set's values."""

    __slots__ = ("counts", "exemplars", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.sum: float = 0
        self.exemplars: dict[int, Exemplar] = {}

    def add(self, tally: Tally, scale: float) -> None:
        """Add the bucket counts and the sum of many values, which are multiplied by ``scale``."""
        assert tally.buckets is not None
        self.counts = [*map(int.__add__, self.counts, tally.buckets)]
        self.sum += tally.sum * scale

    def exemplify(self, bounds: Sequence[float], exemplar: Exemplar) -> None:
        """Keep the exemplar as the last one of its bucket."""
        self.exemplars[bisect_left(bounds, exemplar.value)] = exemplar

    def value(self, bounds: tuple[float, ...]) -> HistogramValue:
        return HistogramValue(bounds, tuple(self.counts), self.sum, dict(self.exemplars))


class MetricNumbers(NamedTuple):
    """One configured metric, which several probes may share."""

    spec: MetricSpec
    series: Series[Any]


def metric_numbers(
    spec: MetricSpec, limits: SeriesLimits, failed: Callable[[str, int], None]
) -> MetricNumbers:
    """Return a metric's numbers at 0; ``failed`` gets a failed decoder's name and the number of events."""
    make = partial(HistogramCell, len(spec.buckets)) if spec.kind == "histogram" else _number
    return MetricNumbers(spec, Series(spec.labels, make, limits, failed))


def _number() -> list[float]:
    """Return the cell of a counter or gauge: its value, and a gauge's time in nanoseconds."""
    return [0, 0]


def metric_take(spec: MetricSpec, series: Series[Any]) -> Take:
    """Return the function with which a metric takes a tally."""
    scale, counts = whole_scale(spec.scale), spec.value is None

    def add(tally: Tally) -> None:
        cell = series.cell(tally.key, tally.events)
        cell[0] += tally.events if counts else tally.sum * scale

    def keep(tally: Tally) -> None:
        """Keep the latest value: the tallies of one CPU may come after those of another, and be earlier."""
        cell = series.cell(tally.key, tally.events)
        if tally.time >= cell[1]:
            cell[:] = tally.sum * scale, tally.time

    def spread(tally: Tally) -> None:
        series.cell(tally.key, tally.events).add(tally, scale)

    return {"counter": add, "gauge": keep, "histogram": spread}[spec.kind]


def built_in_takes(
    returned: HistogramCell, errors: dict[int, int], durations: HistogramCell
) -> Mapping[int, Take]:
    """Return the functions with which a probe's built-in metrics take tallies."""

    def count(tally: Tally) -> None:
        (number,) = tally.key
        assert isinstance(number, int)
        errors[-number] = errors.get(-number, 0) + tally.events

    return {
        RETURN_ERRORS: count,
        RETURN_VALUES: partial(HistogramCell.add, returned, scale=1),
        DURATIONS: partial(HistogramCell.add, durations, scale=NANOSECONDS),
    }
