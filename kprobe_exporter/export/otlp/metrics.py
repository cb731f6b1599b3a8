"""Converts snapshots to OTLP's metrics, with Prometheus' names and labels, and pushes them at an interval."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, TypeAlias

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kprobe_exporter.errors import one_line
from kprobe_exporter.export.otlp.channel import Sender, SendingThread
from kprobe_exporter.model.snapshot import Family, HistogramValue, LabelValues, NativeValue, Snapshot

POINTS = 500
"""Data points of one request: even at 8 KiB each, gRPC servers accept the request."""

UNITS = {"seconds": "s", "bytes": "By"}
"""UCUM's symbols of the units in which our metric names end."""

CUMULATIVE = sdk.AggregationTemporality.CUMULATIVE

ABSENT: Any = None
"""The value of an SDK field that OTLP can omit."""

INT64 = range(-(1 << 63), 1 << 63)

Data: TypeAlias = sdk.Sum | sdk.Gauge | sdk.Histogram | sdk.ExponentialHistogram

DATA: Mapping[str, Callable[[list[Any]], Data]] = {
    "counter": partial(sdk.Sum, aggregation_temporality=CUMULATIVE, is_monotonic=True),
    "gauge": sdk.Gauge,
    "histogram": partial(sdk.Histogram, aggregation_temporality=CUMULATIVE),
}
NATIVE = partial(sdk.ExponentialHistogram, aggregation_temporality=CUMULATIVE)


class Conversion:
    """Converts successive snapshots to metrics, and remembers when each label set appeared.

    A label set starts at the time of the last snapshot without it. So a label set that expired and came back
    has a new start time, and is not taken for a counter that went down. ``start`` is the time when counting
    began, in nanoseconds since the epoch. Not thread-safe.
    """

    def __init__(self, start: int, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._last = start
        self._starts: dict[str, dict[LabelValues, int]] = {}

    def metrics(self, snapshot: Snapshot) -> list[sdk.Metric]:
        """Convert every family that has a sample; all of them get the same time."""
        now = self._clock()
        known, self._starts = self._starts, {}
        made = []
        for family in snapshot.families:
            before = known.get(family.name, {})
            starts = {labels: before.get(labels, self._last) for labels in family.samples}
            self._starts[family.name] = starts
            if starts:
                made.append(_metric(family, starts, now))
        self._last = now
        return made


def pack(resource: Resource, scope: InstrumentationScope, metrics: Sequence[sdk.Metric]) -> bytes:
    """Return an ExportMetricsServiceRequest."""
    scoped = sdk.ScopeMetrics(scope, metrics, scope.schema_url or "")
    data = sdk.MetricsData([sdk.ResourceMetrics(resource, [scoped], resource.schema_url)])
    request: bytes = encode_metrics(data).SerializeToString()
    return request


def size(metrics: Sequence[sdk.Metric]) -> int:
    """The number of data points in the metrics, which is what the counts count."""
    return sum(len(metric.data.data_points) for metric in metrics)


def batches(metrics: Sequence[sdk.Metric], most: int) -> Iterator[list[sdk.Metric]]:
    """Yield the metrics in batches of at most ``most`` data points."""
    points = ((number, point) for number, metric in enumerate(metrics) for point in metric.data.data_points)
    while batch := list(islice(points, most)):
        made = []
        for number, group in groupby(batch, itemgetter(0)):
            data = replace(metrics[number].data, data_points=[point for _, point in group])
            made.append(replace(metrics[number], data=data))
        yield made


class Pusher(SendingThread):
    """Pushes a snapshot every ``interval`` seconds, and a last one when it is closed.

    The sources of ``snapshot`` must still run then. The counts are of data points. Data points that are not
    sent by the time of the next push are dropped, since the next push contains all of them again.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        sender: Sender,
        interval: float,
        conversion: Conversion,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("metrics", sender, clock)
        self._snapshot = snapshot
        self._interval = interval
        self._conversion = conversion
        self._waiting = 0

    def _discard(self) -> int:
        return self._waiting

    def _run(self) -> None:
        last = False
        # Once _ended is set, the sources of the snapshot may be gone.
        while not (last or self._ended):
            last = self._closed.wait(self._interval)
            try:
                self._push()
            except Exception as error:  # the next push may succeed
                if not self._ended:
                    self._complain("the metrics cannot be pushed: %r", error)

    def _push(self) -> None:
        next_push = self._clock() + self._interval
        metrics = self._conversion.metrics(self._snapshot())
        self._waiting = size(metrics)
        for batch in batches(metrics, POINTS):
            points, taken = size(batch), 0
            in_time = self._clock() < min(next_push, self._deadline) and self._sender.pause() <= 0
            with self._lock:
                if self._ended:
                    return
                self._waiting -= points
                if not in_time:
                    self._counts = self._counts.plus(dropped=points)
                    continue
                self._under_way = points
            try:
                taken = max(0, min(points, self._sender.export(batch)))
            except Exception as error:
                if not self._ended:
                    self._complain("the metrics cannot be pushed: %r", error)
            self._settle(taken)


def _metric(family: Family, starts: Mapping[LabelValues, int], now: int) -> sdk.Metric:
    points: list[Any] = []
    data = DATA[family.type]
    for labels, value in family.samples.items():
        attributes = dict(zip(family.labels, map(one_line, labels), strict=True))
        start = ABSENT if family.type == "gauge" else starts[labels]
        if isinstance(value, HistogramValue) and value.native is not None:
            points.append(_exponential(attributes, start, now, value, value.native))
            data = NATIVE
        elif isinstance(value, HistogramValue):
            points.append(_histogram(attributes, start, now, value))
        else:
            # An integer that does not fit into OTLP's signed 64 bits is sent as a float.
            number = float(value) if isinstance(value, int) and value not in INT64 else value
            points.append(sdk.NumberDataPoint(attributes, start, now, number))
    # No encoder accepts lone surrogates.
    text = family.help.encode("utf-8", "backslashreplace").decode()
    unit = UNITS.get(family.name.removesuffix("_total").rpartition("_")[2], "")
    return sdk.Metric(family.name, text, unit, data(points))


def _histogram(
    attributes: dict[str, str], start: int, now: int, value: HistogramValue
) -> sdk.HistogramDataPoint:
    """Convert a histogram. In both protocols a bucket includes its upper bound.

    If values may be negative, the sum could decrease, and OTLP leaves it out.
    """
    total = ABSENT if value.bounds and value.bounds[0] < 0 else float(value.sum)
    count = sum(value.counts)
    return sdk.HistogramDataPoint(
        attributes, start, now, count, total, value.counts, value.bounds, min=ABSENT, max=ABSENT
    )


def _exponential(
    attributes: dict[str, str], start: int, now: int, value: HistogramValue, native: NativeValue
) -> sdk.ExponentialHistogramDataPoint:
    """Convert a native histogram, whose bounds OTLP does not need."""
    count, total = sum(value.counts), ABSENT if native.negative else float(value.sum)
    return sdk.ExponentialHistogramDataPoint(
        attributes,
        start,
        now,
        count,
        total,
        native.schema,
        native.zero,
        _buckets(native.positive),
        _buckets(native.negative),
        flags=0,
        min=ABSENT,
        max=ABSENT,
    )


def _buckets(counts: Mapping[int, int]) -> sdk.Buckets:
    """Return the buckets from the lowest to the highest that has a value. OTLP's index is lower by one."""
    if not counts:
        return sdk.Buckets(0, [])
    low, high = min(counts), max(counts)
    return sdk.Buckets(low - 1, [counts.get(step, 0) for step in range(low, high + 1)])
