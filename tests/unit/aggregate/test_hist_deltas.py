"""Growing hist tables become counters that never decrease: differences, buckets and typed keys."""

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.hist_deltas import HistDeltas
from kprobe_exporter.aggregate.native import NativeCell
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.model import GUESSED_RETURN, Attach, Decode, Label, Metric, Probe, return_type
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import DURATIONS, ExponentialBucket, Tally
from kprobe_exporter.model.hist import HistFeed, HistKey, HistReading, HistTable
from kprobe_exporter.model.pairs import PairLoss
from kprobe_exporter.model.records import Batch, Layout, Record
from kprobe_exporter.model.snapshot import HistogramValue, KernelCounts, NativeValue
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics, ProbeSpec
from kprobe_exporter.model.values import ReturnType
from kprobe_exporter.plan import Kernel, plan_probe
from tests.support.conditions import compile_filter

LAYOUT = Layout(3, "p", "p", "return", "f", (), GUESSED_RETURN)
KEYS = HistKey("comm", "comm", 0), HistKey("return", "return", 64, signed=True)
COUNTED = HistTable(KEYS, "n", None, 128, (HistFeed(0, "add", (1, 0)),), passed=True)
WHOLE = COUNTED._replace(high="n_high")


def tables(*made: HistTable, layout: Layout = LAYOUT) -> HistDeltas:
    metric = MetricSpec("a_total", "counter", "help", None, ())
    return HistDeltas(layout, ProbeMetrics("p", (metric,), (1.0,), layout.returns), made)


def reading(rows: dict[tuple[Any, ...], tuple[int, int]], dropped: int = 0) -> HistReading:
    return HistReading(sum(hits for hits, _ in rows.values()), dropped, rows)


def test_what_happened_since() -> None:
    made = tables(COUNTED)
    first = {(b"a", 2**64 - 2): (3, 30), (b"b", 5): (1, 10)}
    batch = made.since([reading(first)])
    assert batch.tallies == [Tally(3, 0, (-2, b"a"), 3, 30), Tally(3, 0, (5, b"b"), 1, 10)]
    assert batch.arrived == {3: 4}
    assert made.since([reading(first)]) == Batch(arrived={3: 0})
    batch = made.since([reading({**first, (b"b", 5): (3, 15)}, dropped=7)])
    assert batch.tallies == [Tally(3, 0, (5, b"b"), 2, 5)]
    assert (batch.arrived, batch.table_full) == ({3: 2}, Counter({3: 7}))
    assert made.since([reading({**first, (b"b", 5): (3, 15)}, dropped=9)]) == Batch(
        arrived={3: 0}, table_full=Counter({3: 2})
    )


def test_a_table_that_started_again() -> None:
    made = tables(COUNTED)
    made.since([reading({(b"a", 1): (10, 100), (b"b", 1): (10, 100)})])
    batch = made.since([reading({(b"a", 1): (2, 7)})])
    assert batch.tallies == [Tally(3, 0, (1, b"a"), 2, 7)]
    assert batch.arrived == {3: 2}


@pytest.mark.parametrize(
    ("table", "before", "after", "added"),
    [
        (COUNTED, 2**64 - 1, 4, 5),
        (WHOLE, 2**64 - 1, 2**70, 2**70 - 2**64 + 1),
        (WHOLE, 2**96 - 1, 4, 5),
    ],
)
def test_a_sum_that_ran_over(table: HistTable, before: int, after: int, added: int) -> None:
    made = tables(table)
    made.since([reading({(b"a", 1): (1, before)})])
    assert made.since([reading({(b"a", 1): (2, after)})]).tallies == [Tally(3, 0, (1, b"a"), 1, added)]


NARROW, GUESSED = HistKey("n", "n", 32, signed=True), HistKey("return", "return", signed=True)


@pytest.mark.parametrize(
    ("key", "raw", "number"),
    [(NARROW, 2**64 - 2, -2), (NARROW, 2**32 - 2, -2), (GUESSED, 2**32 - 2, -2), (GUESSED, 2**32, 2**32)],
)
def test_numbers_by_their_width(key: HistKey, raw: int, number: int) -> None:
    """A key is printed sign-extended if it is alone, else zero-extended; the width of a long is a guess."""
    made = tables(HistTable((key,), None, None, 128, (HistFeed(0, "add", (0,)),)))
    assert made.since([reading({(raw,): (1, 0)})]).tallies == [Tally(3, 0, (number,), 1, 0)]


def test_losses_of_a_pair_are_lower_bounds_of_which_the_highest_counts() -> None:
    made, nothing = tables(COUNTED), [reading({})]
    batch = made.since(nothing, PairLoss(3, 1))
    assert (batch.unpaired, batch.table_full) == (Counter({3: 3}), Counter({3: 1}))
    batch = made.since(nothing, PairLoss(2, 1))
    assert (batch.unpaired, batch.table_full) == (Counter(), Counter())
    batch = made.since(nothing, PairLoss(5, 0))
    assert (batch.unpaired, batch.table_full) == (Counter({3: 2}), Counter())


def test_durations_go_into_the_built_in_histogram() -> None:
    key = HistKey("duration", "duration", log2=True)
    table = HistTable((key,), "duration", None, 128, (HistFeed(DURATIONS, "spread", (), 0),), passed=True)
    made = HistDeltas(LAYOUT, ProbeMetrics("p", (), (), None, (1.024e-06, 4.096e-06)), [table])
    batch = made.since([reading({(10,): (2, 2000), (11,): (1, 1025), (20,): (1, 1_000_000)})])
    assert [(one.feeds, one.buckets, one.sum) for one in batch.tallies] == [
        (DURATIONS, (2, 0, 0), 2000),
        (DURATIONS, (0, 1, 0), 1025),
        (DURATIONS, (0, 0, 1), 1_000_000),
    ]


class Table:
    """A model of a hist trigger in the kernel: its condition, its keys, its rows and their limit."""

    def __init__(self, table: HistTable) -> None:
        self.table = table
        self.test = compile_filter(parse_filter(table.condition)) if table.condition else lambda _: True
        self.rows: dict[tuple[int | bytes, ...], tuple[int, int]] = {}
        self.dropped = 0

    def fire(self, fields: dict[str, int | bytes | None]) -> None:
        if not self.test(fields):
            return
        key = tuple(self.shown(one, fields[one.name]) for one in self.table.keys)
        if key not in self.rows and len(self.rows) >= self.table.size:
            self.dropped += 1
            return
        added = fields[self.table.value] if self.table.value else 0
        hits, total = self.rows.get(key, (0, 0))
        assert isinstance(added, int)
        self.rows[key] = hits + 1, total + added

    @staticmethod
    def shown(key: HistKey, value: int | bytes | None) -> int | bytes:
        if isinstance(value, bytes) or value is None:
            return value or b""
        if key.width:
            return value // key.width * key.width
        return max(0, (value - 1).bit_length()) if key.log2 else value % 2**64


COMM = Label("comm", "comm")
METRICS = (
    Metric("counter", "a_total", "h", None, (COMM, Label("e", "return", (Decode("errno"),)))),
    Metric("counter", "b_total", "h", "n", (COMM,), scale=512.0),
    Metric("counter", "c_total", "h", "return"),
    Metric("histogram", "d", "h", "return", (COMM,), (-1.0, 0.0, 1.0, 2.0, 64.0, 4096.0), native=True),
    Metric("histogram", "e", "h", "n", (), (0.001, 0.512, 4.096), scale=0.001),
    Metric("counter", "f_total", "h", None, (), where="n > 100"),
    Metric("histogram", "g", "h", "n", (), (2.0**53, 2.0**63, 2.0**64)),
    Metric("histogram", "i", "h", "return", (COMM,), (-1.0, 0.0, 99.0, 199.0, 399.0)),
    Metric("histogram", "j", "h", "n", (), (0.5, 0.7, 0.9), scale=0.1),
)


def numbers(
    aggregate: str, events: list[tuple[int, int, bytes]], returns: ReturnType, *, hist: bool = True
) -> tuple[Numbers, ProbeSpec]:
    """Return what an agent shows of these events, aggregated in the kernel or event by event."""
    way = Attach(parse_target("kretprobe:f"), {"n": "$arg1:u64"}, "n != 7", returns)
    made = Probe("p", "help", (way,), METRICS, aggregate=aggregate, native=True)  # type: ignore[arg-type]
    described = Kernel(lambda *_: None, counts_tracepoints=hist)
    plan = plan_probe(made, "ns", DECODERS, described, itertools.count())
    spec = plan.alternatives[0]
    assert isinstance(spec, ProbeSpec)
    aggregator = Aggregator("ns", SeriesLimits(1000, 20_000), name_of)
    aggregator.declare(plan.metrics)
    aggregator.attach(spec.layout, tables=spec.tables)
    kernel = [Table(table) for table in spec.tables]
    records: list[Record] = []
    for number, (returned, n, comm) in enumerate(events):
        fields: dict[str, int | bytes | None] = {"return": returned, "n": n, "comm": comm, "common_cpu": 0}
        for table in kernel:
            table.fire(fields)
        if n != 7:
            values = [fields[arg.name] for arg in spec.layout.args]
            records.append((spec.layout.layout_id, 0, 0, 1, None, None, *values))
        if number % 3 == 0 and spec.tables:
            aggregator.update_kernel(read(spec, kernel))
    if spec.tables:
        aggregator.update_kernel(read(spec, kernel))
    else:
        aggregator.consume(Batch(records))
    return aggregator.copy(), spec


def read(spec: ProbeSpec, kernel: list[Table]) -> KernelCounts:
    readings = tuple(
        HistReading(sum(hits for hits, _ in t.rows.values()), t.dropped, dict(t.rows)) for t in kernel
    )
    return KernelCounts(tables={spec.layout.layout_id: readings})


returned = st.one_of(st.integers(-5000, 5000), st.sampled_from([2**32 - 2, 2**32 - 4095, 2**32, -(2**40)]))
events = st.lists(st.tuples(returned, st.integers(0, 5000), st.sampled_from([b"x", b"\xff}", b""])))


@pytest.mark.parametrize("instead", [{"aggregate": "events"}, {"aggregate": "kernel", "hist": False}])
@given(events, st.sampled_from([GUESSED_RETURN, *map(return_type, ("long", "ssize_t"))]))
def test_the_same_as_by_events(
    instead: dict[str, Any], happened: list[tuple[int, int, bytes]], returns: ReturnType
) -> None:
    """Also where the kernel should aggregate, and has no hist triggers."""
    kernel, by_tables = numbers("kernel", happened, returns)
    one_by_one, by_events = numbers(events=happened, returns=returns, **instead)
    assert (by_tables.plan, by_events.plan) == ("kernel", "events")
    for told, expected in zip(kernel.families, one_by_one.families, strict=True):
        assert told.name == expected.name
        assert rounded(dict(told.samples)) == rounded(dict(expected.samples))
    assert kernel.events == one_by_one.events
    assert kernel.lost.get("negative", 0) == one_by_one.lost.get("negative", 0)


def test_both_plans_have_the_same_buckets_above_2_53() -> None:
    """2^63 as a float is written as 9.223372036854776e+18, which is more by 192."""
    happened = [(0, 2**power + more, b"x") for power in (53, 63) for more in (-1, 0, 1, 192, 193)]
    counts = {}
    for plan in ("kernel", "events"):
        (family,) = (one for one in numbers(plan, happened, GUESSED_RETURN)[0].families if one.name == "ns_g")
        value = dict(family.samples)[()]
        assert isinstance(value, HistogramValue)
        counts[plan] = value.counts
    assert counts == {"kernel": (2, 5, 3, 0), "events": (2, 5, 3, 0)}


def rounded(samples: dict[Any, Any]) -> dict[Any, Any]:
    """Round the sums, because sums of fractions in another order differ in their last bits.

    Native histograms have the buckets of schema 0, in which the kernel counts.
    """
    return {
        key: (value.counts, round(value.sum, 6), value.native and by_powers_of_2(value.native))
        if isinstance(value, HistogramValue)
        else value
        for key, value in samples.items()
    }


def by_powers_of_2(value: NativeValue) -> NativeValue:
    cell = NativeCell()
    cell.add(ExponentialBucket(1, 0, 0), 0)
    for sign, counts in ((0, {0: value.zero}), (1, value.positive), (-1, value.negative)):
        for step, events in counts.items():
            cell.add(ExponentialBucket(sign, step, value.schema), events)
    return cell.value()._replace(positive={step: events for step, events in cell.positive.items() if events})


def test_an_update_of_a_probe_that_is_not_attached() -> None:
    aggregator = Aggregator("ns", SeriesLimits(1, 1), name_of)
    aggregator.update_kernel(KernelCounts(tables={9: ()}))
    assert aggregator.copy().events == {}


def test_what_a_full_table_lost_is_counted_once() -> None:
    """When another probe goes, what the remaining tables lost before is not counted again."""
    aggregator = Aggregator("ns", SeriesLimits(100, 100), name_of)
    labels = (LabelSpec("return", "return"), LabelSpec("comm", "comm"))
    metric = MetricSpec("a_total", "counter", "help", None, labels)
    layouts = [replace(LAYOUT, layout_id=number, probe=f"p{number}") for number in (1, 2)]
    for layout in layouts:
        aggregator.declare(ProbeMetrics(layout.probe, (metric,), (1.0,), layout.returns))
        aggregator.attach(layout, tables=[COUNTED])
    first, second = reading({(b"a", 1): (128, 0)}, dropped=872), reading({(b"a", 1): (1, 0)}, dropped=372)
    aggregator.update_kernel(KernelCounts(tables={1: (first,), 2: (second,)}))
    assert aggregator.copy().lost == {"table_full": 1244}
    assert aggregator.copy().events == {"p1": 128, "p2": 1}
    aggregator.detach(layouts[0])
    aggregator.update_kernel(KernelCounts(tables={2: (second,)}, epoch=aggregator.epoch))
    assert aggregator.copy().lost == {"table_full": 1244}


@pytest.mark.parametrize("hist", [True, False])
@pytest.mark.parametrize("kind", ["counter", "histogram"])
def test_a_field_that_the_event_lacks_is_an_empty_label(kind: Any, hist: bool) -> None:
    """It is no failure, and no decoder sees it; the other label is as ever."""
    labels = Label("reason", "reason", (Decode("errno"),)), Label("n", "n")
    value, bounds = ("n", (1.0, 8.0)) if kind == "histogram" else (None, None)
    metric = Metric(kind, "drops_total", "help", value, labels, bounds)
    way = Attach(parse_target("kprobe:f"), {"n": "$arg1:u64"}, None, None, absent=frozenset({"reason"}))
    made = Probe("p", "help", (way,), (metric,), aggregate="kernel")
    described = Kernel(lambda *_: None, counts_tracepoints=hist)
    plan = plan_probe(made, "ns", DECODERS, described, itertools.count())
    spec = plan.alternatives[0]
    assert isinstance(spec, ProbeSpec)
    assert spec.plan == ("kernel" if hist else "events")
    aggregator = Aggregator("ns", SeriesLimits(1000, 20_000), name_of)
    aggregator.declare(plan.metrics)
    aggregator.attach(spec.layout, tables=spec.tables)
    kernel = [Table(table) for table in spec.tables]
    for n in (5, 5, 6):
        for table in kernel:
            table.fire({"n": n, "common_cpu": 0})
        if not hist:
            aggregator.consume(Batch([(spec.layout.layout_id, 0, 0, 1, None, None, n)]))
    if hist:
        aggregator.update_kernel(read(spec, kernel))
    numbers = aggregator.copy()
    [family] = [family for family in numbers.families if family.name == "ns_drops_total"]
    counted = {
        key: sum(sample.counts) if isinstance(sample, HistogramValue) else sample
        for key, sample in family.samples.items()
    }
    assert counted == {("", "5"): 2, ("", "6"): 1}
    assert numbers.decode_failures == {}
