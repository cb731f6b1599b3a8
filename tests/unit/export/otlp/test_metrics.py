"""Metrics keep their names, numbers and labels in OTLP; the pusher counts each point once and closes in time.

The tests of the conversion look at the encoded request.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import Metric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kprobe_exporter.errors import one_line
from kprobe_exporter.export.otlp.channel import SignalCounts
from kprobe_exporter.export.otlp.metrics import POINTS, Conversion, Pusher, batches, pack, size
from kprobe_exporter.model.snapshot import Family, HistogramValue, LabelValues, NativeValue, Snapshot
from tests.support.otlp_sender import SOON, FakeSender
from tests.unit.export.conftest import HOSTILE, SNAPSHOT

START = 10**18
PACK = partial(pack, Resource({"service.name": "x"}), InstrumentationScope("kprobe_exporter", "1"))


class Clock:
    """A clock that is 10 s later at each call."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        self.now += 10 * 10**9
        return self.now


def encoded(metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return the encoded metrics by name, as the collector gets them."""
    request = ExportMetricsServiceRequest.FromString(PACK(metrics))
    return {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}


def converted(*families: Family) -> dict[str, Any]:
    return encoded(Conversion(START, Clock()).metrics(Snapshot(families, ())))


def labels(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_the_snapshot() -> None:
    got = converted(*SNAPSHOT.families)
    assert list(got) == [family.name for family in SNAPSHOT.families if family.samples]
    assert got["kprobe_hits_total"].description == "How often the probe fired."
    hits = got["kprobe_hits_total"].sum
    assert (hits.is_monotonic, hits.aggregation_temporality) == (True, 2)
    assert [(labels(p), p.as_int or p.as_double) for p in hits.data_points] == [
        ({"probe": "open"}, 23),
        ({"probe": "vfs_read"}, 1e9),
    ]
    assert {p.start_time_unix_nano for p in hits.data_points} == {START}
    assert {p.time_unix_nano for p in hits.data_points} == {START + 10 * 10**9}
    [up] = got["kprobe_up"].gauge.data_points
    assert (up.as_int, up.start_time_unix_nano) == (1, 0)
    [duration] = got["kprobe_duration_seconds"].histogram.data_points
    assert list(duration.explicit_bounds) == [1e-06, 0.5, 4.0]
    assert list(duration.bucket_counts) == [2, 0, 1, 1]
    assert (duration.count, duration.sum) == (4, 12.25)
    assert not duration.HasField("min")
    assert not duration.HasField("max")
    [opens] = got["kprobe_opens_total"].sum.data_points
    assert labels(opens) == {"comm": one_line(HOSTILE)}


def test_a_native_histogram_is_an_exponential_one() -> None:
    """OTLP's bucket of an index lies above 2^(index / 2^scale), and Prometheus' up to there."""
    native = NativeValue(3, 7, {-2: 1, 0: 2, 1: 3}, {})
    value = HistogramValue((1.0,), (10, 3), 5.5, {}, native)
    below = value._replace(native=native._replace(negative={9: 4}))
    family = Family("kprobe_sizes", "histogram", "", ("comm",), {("a",): value, ("b",): below})
    exponential = converted(family)["kprobe_sizes"].exponential_histogram
    assert exponential.aggregation_temporality == 2
    first, second = exponential.data_points
    assert (labels(first), first.scale, first.count, first.sum) == ({"comm": "a"}, 3, 13, 5.5)
    assert (first.zero_count, first.start_time_unix_nano) == (7, START)
    assert (first.positive.offset, list(first.positive.bucket_counts)) == (-3, [1, 0, 2, 3])
    assert not first.negative.bucket_counts
    assert not first.HasField("min")
    assert (second.negative.offset, list(second.negative.bucket_counts)) == (8, [4])
    assert not second.HasField("sum")


def test_a_sum_that_may_go_down_is_not_told() -> None:
    [point] = converted(SNAPSHOT.families[3])["kprobe_balance"].histogram.data_points
    assert not point.HasField("sum")
    assert point.count == 6


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("kprobe_duration_seconds", "s"),
        ("kprobe_busy_seconds_total", "s"),
        ("kprobe_read_bytes_total", "By"),
        ("kprobe_exporter_ring_buffer_bytes", "By"),
        ("kprobe_hits_total", ""),
        ("kprobe_milliseconds", ""),
        ("seconds", "s"),
        ("_total", ""),
    ],
)
def test_units(name: str, symbol: str) -> None:
    assert converted(Family(name, "gauge", "", (), {(): 1}))[name].unit == symbol


BOUNDS = (
    st.integers(2, 64).map(lambda count: tuple(2.0**k for k in range(count)))  # the bounds of exp2: {min: 1}
    | st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, unique=True).map(
        lambda bounds: tuple(sorted(bounds))
    )
)


def interval(bounds: Sequence[float], place: int) -> tuple[float, float]:
    """Return the bounds of a bucket, which holds the values above the first and up to the second."""
    return (bounds[place - 1] if place else -inf), (bounds[place] if place < len(bounds) else inf)


@st.composite
def observed(draw: st.DrawFn) -> tuple[tuple[float, ...], list[float]]:
    """Draw bounds, and values, some of which equal a bound."""
    bounds = draw(BOUNDS)
    numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-1.0, 0, 0.5, 1, *bounds])
    return bounds, draw(st.lists(numbers, max_size=30))


@given(observed())
@example(((1, 2, 4, 8), [10_000.0] * 5))
@example(((1, 2, 4, 8), [-3.0, 0, 0.5, 1]))
def test_every_value_lies_in_the_bucket_that_counts_it(
    observation: tuple[tuple[float, ...], list[float]],
) -> None:
    """For any bounds: only the unbounded bucket counts values above the last, and 1 is not counted as 0."""
    bounds, values = observation
    counts = Counter(bisect_left(bounds, value) for value in values)
    histogram = HistogramValue(bounds, tuple(map(counts.__getitem__, range(len(bounds) + 1))), sum(values))
    family = Family("kprobe_sizes", "histogram", "", (), {(): histogram})
    [point] = converted(family)["kprobe_sizes"].histogram.data_points
    got = [
        (*interval(point.explicit_bounds, place), count)
        for place, count in enumerate(point.bucket_counts)
        if count
    ]
    lying = [sum(low < value <= high for value in values) for low, high, _ in got]
    assert [count for *_, count in got] == lying
    assert sum(lying) == point.count == len(values)


@pytest.mark.parametrize("bounds", [(1, 2, 4, 8), tuple(2.0**k for k in range(64))])
def test_what_the_kernel_counted_by_powers_of_two(bounds: tuple[float, ...]) -> None:
    """The kernel's table has one row for 0 and 1, so both count as 1 or less."""
    counts = (7, *[1] * (len(bounds) - 1), 3)
    family = Family("kprobe_sizes", "histogram", "", (), {(): HistogramValue(bounds, counts, 50_000)})
    metric = converted(family)["kprobe_sizes"]
    assert metric.WhichOneof("data") == "histogram"
    [point] = metric.histogram.data_points
    assert (tuple(point.explicit_bounds), tuple(point.bucket_counts)) == (bounds, counts)
    assert (point.count, point.sum) == (sum(counts), 50_000)


NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
LABELS = st.lists(st.text(st.characters(exclude_categories=())), min_size=2, max_size=2)


@given(st.dictionaries(LABELS.map(tuple), NUMBERS, min_size=1), st.sampled_from(["counter", "gauge"]))
def test_any_number_and_any_label(samples: dict[LabelValues, float], kind: Any) -> None:
    """No sample is lost in the SDK's encoder, although it leaves out what it cannot encode."""
    metric = converted(Family("kprobe_x", kind, "\ud800", ("a", "b"), samples))["kprobe_x"]
    points = (metric.sum if kind == "counter" else metric.gauge).data_points
    assert len(points) == len(samples)
    for point, value in zip(points, samples.values(), strict=True):
        assert set(labels(point)) == {"a", "b"}
        got = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
        assert got == (value if abs(value) < 2**63 else float(value))


def counter(**samples: int) -> Snapshot:
    values: dict[LabelValues, float] = {(name,): value for name, value in samples.items()}
    return Snapshot((Family("kprobe_x_total", "counter", "", ("comm",), values),), ())


def test_a_label_set_that_comes_back_is_a_new_beginning() -> None:
    clock = Clock()
    conversion = Conversion(START, clock)
    seconds = []
    for snapshot in (counter(a=5), counter(a=6, b=1), counter(b=2), counter(a=1, b=3), counter(a=2)):
        points = encoded(conversion.metrics(snapshot))["kprobe_x_total"].sum.data_points
        seconds.append({labels(p)["comm"]: (p.start_time_unix_nano - START) // 10**9 for p in points})
    assert seconds == [{"a": 0}, {"a": 0, "b": 10}, {"b": 10}, {"a": 30, "b": 10}, {"a": 30}]


@given(st.lists(st.integers(0, 20), max_size=8), st.integers(1, 15))
def test_batches_are_small_and_leave_nothing_out(sizes: list[int], most: int) -> None:
    kinds: Any = ("counter", "gauge", "histogram")
    families = []
    for number, count in enumerate(sizes):
        kind = kinds[number % 3]
        value: Any = HistogramValue((1.5,), (1, 2), 3) if kind == "histogram" else 1
        samples: dict[LabelValues, Any] = {(str(n),): value for n in range(count)}
        families.append(Family(f"kprobe_{number}", kind, "", ("n",), samples))
    metrics = Conversion(START).metrics(Snapshot(tuple(families), ()))
    parts = list(batches(metrics, most))
    assert all(size(part) == most for part in parts[:-1])
    assert all(0 < size(part) <= most for part in parts)
    found = [(m.name, m.unit, type(m.data), p) for part in parts for m in part for p in m.data.data_points]
    assert found == [(m.name, m.unit, type(m.data), p) for m in metrics for p in m.data.data_points]
    for part in parts:
        assert len(encoded(part)) == len(part)


PUSHED = Snapshot(
    (Family("kprobe_x_total", "counter", "", ("n",), {(str(n),): n for n in range(3 * POINTS)}),), ()
)


@pytest.fixture
def sender() -> FakeSender[Metric]:
    """A sender that takes all data points."""
    return FakeSender(size)


def pusher(sender: FakeSender[Metric], interval: float = 3600) -> Pusher:
    """Return a pusher whose clock stands still, so each push is in time, even after a slow conversion."""
    return Pusher(lambda: PUSHED, sender, interval, Conversion(0), lambda: 0.0)


def test_closing_pushes_a_last_time() -> None:
    sender = FakeSender[Metric](lambda items: size(items) - 2)
    made = pusher(sender)
    made.start()
    made.close(SOON)
    made.close(SOON)
    assert [*map(size, sender.batches)] == [POINTS] * 3
    assert made.counts() == SignalCounts(exported=3 * POINTS - 6, failed=6)
    assert sender.closed == 1


def test_again_and_again(sender: FakeSender[Metric]) -> None:
    made = pusher(sender, interval=0.01)
    made.start()
    for _ in range(4):
        assert sender.arrived.acquire(timeout=SOON)
    made.close(SOON)
    assert made.counts() == SignalCounts(exported=len(sender.batches) * POINTS)
    assert len(sender.batches) % 3 == 0


def test_what_is_late_is_dropped() -> None:
    """Data points that are late are dropped, because the next push has all of them again."""
    now = 0.0

    def takes(items: Sequence[Metric]) -> int:
        nonlocal now
        now += 3600
        return size(items)

    made = Pusher(lambda: PUSHED, FakeSender(takes), 3600, Conversion(0), lambda: now)
    made.start()
    made.close(SOON)
    assert made.counts() == SignalCounts(exported=POINTS, dropped=2 * POINTS)


def test_silence_that_was_asked_for(sender: FakeSender[Metric]) -> None:
    sender.paused = 60
    made = pusher(sender)
    made.start()
    made.close(SOON)
    assert made.counts() == SignalCounts(dropped=3 * POINTS)


def test_closing_gives_up_a_request_without_an_answer(sender: FakeSender[Metric]) -> None:
    sender.gate.clear()
    made = pusher(sender, interval=0.01)
    made.start()
    assert sender.arrived.acquire(timeout=SOON)
    made.close(0.01)
    assert made.counts() == SignalCounts(dropped=2 * POINTS, failed=POINTS)
    sender.gate.set()
    made._thread.join(SOON)
    assert made.counts() == SignalCounts(dropped=2 * POINTS, failed=POINTS)


def test_an_ended_pusher_sends_nothing(sender: FakeSender[Metric], caplog: pytest.LogCaptureFixture) -> None:
    """A pusher that has ended takes no snapshot: the snapshot's sources may be gone by then."""
    asked = 0

    def snapshot() -> Snapshot:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise RuntimeError("closed")
        return PUSHED

    sender.gate.clear()
    made = Pusher(snapshot, sender, 0.01, Conversion(0), lambda: 0.0)
    made.start()
    assert sender.arrived.acquire(timeout=SOON)
    made.close(0.01)
    sender.gate.set()
    made._thread.join(SOON)
    assert asked == 1
    assert not caplog.records


def test_closing_one_that_was_never_started(sender: FakeSender[Metric]) -> None:
    made = pusher(sender)
    made.close(SOON)
    assert made.counts() == SignalCounts()
    assert sender.closed == 1


@pytest.mark.parametrize("where", ["snapshot", "sender"])
def test_a_mistake_does_not_end_the_thread(where: str, caplog: pytest.LogCaptureFixture) -> None:
    calls = threading.Semaphore(0)

    def takes(items: Sequence[Metric]) -> int:
        if where == "sender":
            raise RuntimeError("gone")
        return size(items)

    def snapshot() -> Snapshot:
        calls.release()
        if where == "snapshot":
            raise KeyError("x")
        return PUSHED

    made = Pusher(snapshot, FakeSender(takes), 0.001, Conversion(0), clock=lambda: 0.0)
    made.start()
    for _ in range(3):
        assert calls.acquire(timeout=SOON)
    made.close(SOON)
    assert len(caplog.records) == 1
    assert made.counts().exported == 0
    assert (made.counts().failed > 0) is (where == "sender")
