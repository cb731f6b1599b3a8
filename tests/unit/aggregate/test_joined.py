"""Records of calls and pairs: their durations in seconds, their hits, and the unpaired events."""

from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.recipes import whole_scale
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.model import DURATION_BUCKETS, Metric
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import Batch, Layout, Outstanding, Record
from kprobe_exporter.model.snapshot import HistogramValue, KernelCounts, exemplar_of_span
from kprobe_exporter.model.specs import MetricSpec, ProbeMetrics
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import metric_spec, where
from tests.support.aggregated import families
from tests.support.return_records import LONG

JOINED = Layout(
    3, "read", "read", "joined", "f", (Arg("return", "int"), Arg("comm", "str"), Arg("duration", "int")), LONG
)
SECOND = 1_000_000_000


def metric(kind: str, name: str, value: str | None = "duration", **more: Any) -> MetricSpec:
    """Return a metric as the plan makes it from a configuration."""
    return metric_spec(Metric(kind, name, "help", value, **more), "kprobe", DECODERS)  # type: ignore[arg-type]


def seconds(text: str) -> Where:
    return where(parse_formula(text))


def aggregator(
    *metrics: MetricSpec,
    buckets: tuple[float, ...] = DURATION_BUCKETS,
    return_buckets: tuple[float, ...] = (1.0, 4.0),
    count_hits: bool = False,
    residual_filter: Where | None = None,
) -> Aggregator:
    made = Aggregator("kprobe", SeriesLimits(1000, 20_000), name_of)
    made.declare(ProbeMetrics("read", metrics, return_buckets, LONG, buckets))
    made.attach(JOINED, count_hits=count_hits, residual_filter=residual_filter, joined=True)
    return made


def joined(took: object, returned: object = 0, comm: object = b"cat") -> Record:
    return (3, 1_000, 0, 77, None, b"g", returned, comm, took)


def sample(made: Aggregator, name: str, *labels: str) -> Any:
    return families(made.copy())[f"kprobe_{name}"].samples[labels]


def bucket(histogram: HistogramValue) -> int:
    """Return the only bucket that is not empty."""
    [place] = [place for place, count in enumerate(histogram.counts) if count]
    return place


@pytest.mark.parametrize("name", ["built-in", "metric"])
@pytest.mark.parametrize("place", range(len(DURATION_BUCKETS)))
def test_a_bound_is_in_its_bucket(name: str, place: int) -> None:
    """A duration equal to a bound falls into that bound's bucket: 1000 ns into that of 1e-06 s."""
    mine = metric("histogram", "a_seconds", buckets=DURATION_BUCKETS)
    family, labels = {"built-in": ("duration_seconds", ("read",)), "metric": ("a_seconds", ())}[name]
    nanoseconds = 1000 * 4**place
    for took, expected in (nanoseconds - 1, place), (nanoseconds, place), (nanoseconds + 1, place + 1):
        made = aggregator(mine)
        made.consume(Batch([joined(took)]))
        assert bucket(sample(made, family, *labels)) == expected


@given(st.integers(1, 10**6), st.sampled_from([1, 1_000, 1_000_000, SECOND]))
def test_any_bound_that_a_person_writes_is_met(count: int, unit: int) -> None:
    """A bound that is a whole number of ns, µs, ms or s in the configuration is compared exactly."""
    took = count * unit
    bound = float(f"{took // SECOND}.{took % SECOND:09}")
    made = aggregator(metric("histogram", "a_seconds", buckets=(bound,)), buckets=(bound,))
    made.consume(Batch([joined(took), joined(took + 1)]))
    for value in sample(made, "a_seconds"), sample(made, "duration_seconds", "read"):
        assert value.counts == (1, 1)


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 0.001, 0.5, 0.3, 1.0, 2.5, 512.0, 1e200, 1e-200, 5e-324])
def test_any_scale_multiplies(scale: float) -> None:
    """A scale that is a reciprocal divides, which is exact: 3 / 10 is 0.3, but 3 * 0.1 is not."""
    factor = whole_scale(scale)
    for value in (0, 1, 7, 1000, 2**63, -5):
        assert value * factor == pytest.approx(value * scale)
    assert [n * whole_scale(0.1) for n in (3, 6, 7)] == [0.3, 0.6, 0.7]


def test_the_built_in_histogram() -> None:
    made = aggregator(buckets=(0.5, 1.0))
    made.consume(Batch([joined(took * SECOND // 4) for took in (1, 2, 4, 8, 0)]))
    family = families(made.copy())["kprobe_duration_seconds"]
    assert (family.type, family.labels) == ("histogram", ("probe",))
    assert family.samples == {("read",): HistogramValue((0.5, 1.0), (3, 1, 1), 3.75)}


def test_it_is_there_from_the_start() -> None:
    made = Aggregator("kprobe", SeriesLimits(1000, 20_000), name_of)
    made.declare(ProbeMetrics("read", (), (), None, (1.0,)))
    made.declare(ProbeMetrics("exec", (), (), None))
    family = families(made.copy())["kprobe_duration_seconds"]
    assert family.samples == {("read",): HistogramValue((1.0,), (0, 0), 0)}


def test_where_nothing_takes_time_there_is_none() -> None:
    made = Aggregator("kprobe", SeriesLimits(1000, 20_000), name_of)
    made.declare(ProbeMetrics("exec", (), (1.0,), LONG))
    assert "kprobe_duration_seconds" not in families(made.copy())


@pytest.mark.parametrize("took", [None, b"text"])
def test_what_is_no_number_is_no_duration(took: object) -> None:
    made = aggregator(metric("counter", "a_seconds_total"))
    made.consume(Batch([joined(took)]))
    assert sample(made, "duration_seconds", "read").sum == 0
    assert sum(sample(made, "duration_seconds", "read").counts) == 0
    assert made.copy().lost == {"unreadable": 2}  # one for each of the two metrics


def test_metrics_are_in_seconds() -> None:
    made = aggregator(
        metric("counter", "took_seconds_total"),
        metric("gauge", "last_seconds"),
        metric("gauge", "last_milliseconds", scale=1000.0),
        metric("histogram", "a_seconds", buckets=(1.0, 2.0)),
        metric("histogram", "a_milliseconds", buckets=(250.0,), scale=1000.0),
    )
    made.consume(Batch([joined(3 * SECOND), joined(SECOND), joined(SECOND // 4)]))
    assert sample(made, "took_seconds_total") == 4.25
    assert sample(made, "last_seconds") == 0.25
    assert sample(made, "last_milliseconds") == 250.0
    assert sample(made, "a_seconds") == HistogramValue((1.0, 2.0), (2, 0, 1), 4.25)
    assert sample(made, "a_milliseconds") == HistogramValue((250.0,), (1, 2), 4250.0)


def test_a_metric_of_the_slow_ones() -> None:
    slow = seconds("duration > 0.5")
    made = aggregator(
        MetricSpec("kprobe_slow_total", "counter", "Slow.", None, (), where=slow),
        MetricSpec("kprobe_all_total", "counter", "All.", None, ()),
        MetricSpec("kprobe_slow_bytes_total", "counter", "Bytes.", "return", (), where=slow),
    )
    half = SECOND // 2
    made.consume(Batch([joined(took, 10) for took in (0, half - 1, half, half + 1, SECOND)]))
    assert sample(made, "slow_total") == 2
    assert sample(made, "all_total") == 5
    assert sample(made, "slow_bytes_total") == 20
    assert sum(sample(made, "duration_seconds", "read").counts) == 5


def test_what_it_returned() -> None:
    made = aggregator()
    made.consume(Batch([joined(1, -2), joined(1, 2**32 - 2), joined(1, 3)]))
    assert sample(made, "return_errors_total", "read", "ENOENT") == 2
    assert sample(made, "return_value", "read") == HistogramValue((1.0, 4.0), (0, 1, 0), 3)


def test_an_event_is_one_that_was_joined() -> None:
    made = aggregator()
    made.consume(Batch([joined(1), joined(2)], arrived={1: 5, 2: 1}, unpaired=Counter({3: 4})))
    assert made.copy().events == {"read": 2}


def test_the_agents_filter_narrows_events_and_durations() -> None:
    made = aggregator(
        MetricSpec("kprobe_all_total", "counter", "All.", None, ()),
        residual_filter=seconds('duration >= 1 && comm == "cat"'),
        count_hits=True,
    )
    made.consume(Batch([joined(SECOND), joined(SECOND - 1), joined(SECOND, comm=b"dog")], begun={3: 3}))
    numbers = made.copy()
    assert (numbers.hits, numbers.events) == ({"read": 3}, {"read": 1})
    assert sample(made, "all_total") == 1
    assert sum(sample(made, "duration_seconds", "read").counts) == 1


def test_hits_are_the_begun_calls_if_the_kernel_does_not_count() -> None:
    """A call counts as a hit whether it ended or not."""
    made = aggregator(count_hits=True)
    assert made.copy().hits == {"read": 0}
    made.consume(Batch([joined(1)], begun={3: 5}))
    made.consume(Batch([joined(1)], begun={3: 10}))
    numbers = made.copy()
    assert numbers.hits == {"read": 15}
    assert families(numbers)["kprobe_hits_total"].samples == {("read",): 15}
    assert numbers.events == {"read": 2}


def test_hits_are_the_kernels_where_it_counts_what_begins() -> None:
    made = aggregator()
    made.consume(Batch([joined(1)], begun={3: 5}))
    assert made.copy().hits == {}
    made.update_kernel(KernelCounts(hits={"read": 7}, misses={"read": 1}))
    assert (made.copy().hits, made.copy().misses) == ({"read": 7}, {"read": 1})


def test_events_of_other_layouts_are_no_hits() -> None:
    made = aggregator(count_hits=True)
    made.consume(Batch(begun={3: 2, 99: 4}))
    assert (made.copy().hits, made.copy().events) == ({"read": 2}, {"read": 0})


def test_events_that_were_recorded_before_the_kernel_counted_are_hits() -> None:
    """Recording begins first, so some events are no hits of the kernel: how many is seen when it is quiet."""
    made = aggregator()
    made.consume(Batch([joined(1)], begun={3: 5}))
    assert made.recorded({"read"}) == {"read": 5}
    assert made.recorded({"other"}) == {}
    made.update_kernel(KernelCounts(hits={"read": 2}, recorded={"read": 0}))
    assert made.copy().hits == {"read": 2}
    made.update_kernel(KernelCounts(hits={"read": 3}, recorded={"read": 5}))
    assert made.copy().hits == {"read": 5}
    made.update_kernel(KernelCounts(hits={"read": 9}, recorded={"read": 10}))
    assert made.copy().hits == {"read": 11}
    made.detach(JOINED)
    assert made.copy().hits == {"read": 11}


def test_a_probe_that_did_not_come_up_has_no_hits() -> None:
    made = aggregator(count_hits=True)
    made.detach(JOINED)
    made.consume(Batch(begun={3: 2}))
    assert made.copy().hits == {}


def test_what_has_no_other_half_is_lost() -> None:
    made = aggregator()
    assert "unpaired" not in made.copy().lost
    made.consume(Batch(unpaired=Counter({3: 3})))
    made.consume(Batch([joined(1)], unpaired=Counter({3: 1, 77: 1}), unparsed=1))
    assert made.copy().lost == {"unpaired": 5, "unparsed": 1}
    assert made.copy().lost_of == {("read", "unpaired"): 4}  # nothing is known of the layout 77


def test_what_is_left_of_a_removed_layout_is_its_probes_loss() -> None:
    made = aggregator()
    assert made.copy().lost_of == {("read", "unpaired"): 0}  # from the start
    made.detach(JOINED)
    made.consume(Batch(unpaired=Counter({3: 2})))
    assert made.copy().lost_of == {("read", "unpaired"): 2}
    made.redeclare([])
    made.consume(Batch(unpaired=Counter({3: 2})))
    assert (made.copy().lost_of, made.copy().lost) == ({}, {"unpaired": 4})


@given(st.lists(st.lists(st.integers(0, 2**40), max_size=5), max_size=5))
def test_every_joined_record_is_in_the_histogram(batches: list[list[int]]) -> None:
    made = aggregator(metric("histogram", "a_seconds", buckets=DURATION_BUCKETS))
    for durations in batches:
        made.consume(Batch([joined(took) for took in durations]))
    took = [one for durations in batches for one in durations]
    for value in sample(made, "duration_seconds", "read"), sample(made, "a_seconds"):
        assert sum(value.counts) == len(took)
        assert value.sum == pytest.approx(sum(took) / SECOND)
    assert made.copy().events == {"read": len(took)}


def test_the_last_exemplar_of_a_bucket_is_kept() -> None:
    made = aggregator()
    for span, took in enumerate((3e-6, 2e-6, 5.0), 1):
        made.exemplify("read", exemplar_of_span(1, span, took, 1_700_000_000.0 + span))
    shown = sample(made, "duration_seconds", "read").exemplars
    assert {place: one.labels[0] for place, one in shown.items()} == {
        bisect_left(DURATION_BUCKETS, 2e-6): ("span_id", f"{2:016x}"),
        bisect_left(DURATION_BUCKETS, 5.0): ("span_id", f"{3:016x}"),
    }


def test_no_bounds_are_no_histogram_and_errors_are_counted_all_the_same() -> None:
    made = aggregator(buckets=(), return_buckets=())
    made.consume(Batch([joined(SECOND, returned=-2), joined(SECOND, returned=5)]))
    found = families(made.copy())
    assert found["kprobe_return_value"].samples == {}
    assert found["kprobe_return_errors_total"].samples == {("read", "ENOENT"): 1}
    assert "kprobe_duration_seconds" not in found


def test_what_is_outstanding_of_all_attachments_is_one_number() -> None:
    """It goes with its attachment, and is no longer shown then."""
    made, other = aggregator(), replace(JOINED, layout_id=4)
    assert "kprobe_outstanding" not in families(made.copy())
    made.declare(ProbeMetrics("read", (), (), LONG, outstanding=Outstanding(0, "size")))
    made.attach(other, joined=True)
    assert sample(made, "outstanding", "read") == 0
    made.consume(Batch(outstanding={3: (2, 10), 4: (5, 7), 99: (1, 1)}))
    made.consume(Batch(outstanding={3: (1, 4)}))
    assert sample(made, "outstanding", "read") == 6
    assert sample(made, "outstanding_weight", "read") == 11
    made.detach(other)
    made.consume(Batch(outstanding={3: (0, 0)}))
    assert sample(made, "outstanding", "read") == 0
    assert sample(made, "outstanding_weight", "read") == 0
