"""Converts snapshots to OTLP's sums, gauges and histograms, with Prometheus' names and labels."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.values import Family, HistogramValue, LabelValues, Snapshot

UNITS = {"seconds": "s", "bytes": "By"}
"""UCUM's symbols of the units in which our metric names end."""

CUMULATIVE = AggregationTemporality.CUMULATIVE

ABSENT: Any = None
"""The value of an SDK field that OTLP can leave out."""

INT64 = range(-(1 << 63), 1 << 63)


class Conversion:
    """Converts successive snapshots to metrics, and remembers when each label set appeared.

    A label set starts at the time of the last snapshot without it. So a label set that expired and came back
    has a new start time, and is not taken for a counter that went down. Not thread-safe.
    """

    def __init__(self, start: int, clock: Callable[[], int] = time.time_ns) -> None:
        """``start`` is the time when counting began, in nanoseconds since the epoch."""
        self._clock = clock
        self._last = start
        self._starts: dict[tuple[str, LabelValues], int] = {}

    def metrics(self, snapshot: Snapshot) -> list[Metric]:
        """Convert every family that has a sample; all of them get the same time."""
        now = self._clock()
        known, self._starts = self._starts, {}
        made = []
        for family in snapshot.families:
            starts = {}
            for labels in family.samples:
                key = family.name, labels
                starts[labels] = self._starts[key] = known.get(key, self._last)
            if family.samples:
                made.append(_metric(family, starts, now))
        self._last = now
        return made


def pack(resource: Resource, scope: InstrumentationScope) -> Callable[[Sequence[Metric]], MetricsData]:
    """Return a function that wraps metrics in the type that the SDK's exporter takes."""

    def packed(metrics: Sequence[Metric]) -> MetricsData:
        scoped = ScopeMetrics(scope, metrics, scope.schema_url or "")
        return MetricsData([ResourceMetrics(resource, [scoped], resource.schema_url)])

    return packed


def size(metrics: Sequence[Metric]) -> int:
    """The number of data points in the metrics, which is what the counts count."""
    return sum(len(metric.data.data_points) for metric in metrics)


def batches(metrics: Sequence[Metric], most: int) -> Iterator[list[Metric]]:
    """Yield the metrics in batches of at most ``most`` data points."""
    batch: list[Metric] = []
    room = most
    for metric in metrics:
        points = metric.data.data_points
        at = 0
        while at < len(points):
            part = points[at : at + room]
            batch.append(_with_points(metric, part))
            at += len(part)
            room -= len(part)
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


def unit(name: str) -> str:
    """The unit in a metric's name as a symbol of UCUM; "" if the name has no unit."""
    return UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")


def _with_points(metric: Metric, points: Sequence[Any]) -> Metric:
    data = metric.data
    whole: Sum | Gauge | Histogram
    if isinstance(data, Sum):
        whole = Sum(points, data.aggregation_temporality, data.is_monotonic)
    elif isinstance(data, Gauge):
        whole = Gauge(points)
    else:
        whole = Histogram(points, data.aggregation_temporality)
    return Metric(metric.name, metric.description, metric.unit, whole)


def _metric(family: Family, starts: Mapping[LabelValues, int], now: int) -> Metric:
    points: list[Any] = []
    for labels, value in family.samples.items():
        attributes = dict(zip(family.labels, map(one_line, labels), strict=True))
        start = ABSENT if family.type == "gauge" else starts[labels]
        if isinstance(value, HistogramValue):
            points.append(_histogram(attributes, start, now, value))
        else:
            points.append(NumberDataPoint(attributes, start, now, _number(value)))
    data: Sum | Gauge | Histogram
    if family.type == "counter":
        data = Sum(points, CUMULATIVE, is_monotonic=True)
    elif family.type == "gauge":
        data = Gauge(points)
    else:
        data = Histogram(points, CUMULATIVE)
    return Metric(family.name, _text(family.help), unit(family.name), data)


def _histogram(attributes: dict[str, str], start: int, now: int, value: HistogramValue) -> HistogramDataPoint:
    """Convert a histogram. In both protocols a bucket includes its upper bound.

    The bounds are explicit even where they are powers of two. An exponential histogram has no bucket for
    values above the last bound. Its lowest bucket would also have to hold both 0 and 1, which a hist
    trigger's ``.log2`` does not tell apart (hist_field_log2() in kernel/trace/trace_events_hist.c).

    If values may be negative, the sum could decrease, and OTLP leaves it out.
    """
    below_0 = bool(value.bounds) and value.bounds[0] < 0
    total = ABSENT if below_0 else float(value.sum)
    count = sum(value.counts)
    return HistogramDataPoint(
        attributes, start, now, count, total, value.counts, value.bounds, min=ABSENT, max=ABSENT
    )


def _number(value: float) -> float:
    """Keep an integer that fits into OTLP's signed 64 bits; convert a larger one to a float."""
    return float(value) if isinstance(value, int) and value not in INT64 else value


def _text(text: str) -> str:
    """Escape lone surrogates: no encoder accepts them, and one would cost the label."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
