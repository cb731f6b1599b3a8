"""All numbers of the agent: fed by events and by the kernel's counts, copied, and never decreasing."""

import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.series import IDLE, SeriesLimits
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import Batch, Layout
from kprobe_exporter.model.snapshot import HistogramValue, KernelCounts, Spread, exemplar_of_span
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics
from kprobe_exporter.model.values import ReturnType
from kprobe_exporter.plan.metric import where
from tests.support.aggregated import OPEN, aggregator, families, probe, record, samples
from tests.support.return_records import LONG, PTR

VOID = ReturnType("void", None)

ERRNO = LabelSpec("errno", "return", (("errno", DECODERS["errno"](None)),))
COMM = LabelSpec("comm", "comm")
ERRORS = MetricSpec("kprobe_open_errors_total", "counter", "Failed.", None, (ERRNO, COMM))
TOTAL = MetricSpec("kprobe_all_total", "counter", "All.", None, ())
SIZES = MetricSpec("kprobe_sizes", "histogram", "Sizes.", "return", (), (0.0, 10.0))
LAST = MetricSpec("kprobe_last", "gauge", "The last.", "return", (COMM,))
FAILED = where(parse_formula("return < 0"))


def test_what_is_there_from_the_start() -> None:
    made = Aggregator("ns", SeriesLimits(1000, 20_000), name_of)
    made.declare(probe("open", ERRORS, TOTAL, SIZES, LAST))
    numbers = made.copy()
    assert {name: family.samples for name, family in families(numbers).items()} == {
        "ns_hits_total": {},
        "ns_misses_total": {},
        "ns_return_value": {("open",): HistogramValue((1.0, 4.0), (0, 0, 0), 0)},
        "ns_return_errors_total": {},
        "kprobe_open_errors_total": {},
        "kprobe_all_total": {(): 0},
        "kprobe_sizes": {(): HistogramValue((0.0, 10.0), (0, 0, 0), 0)},
        "kprobe_last": {},
    }
    assert numbers.events == {"open": 0}
    assert numbers.overflows == {spec.name: 0 for spec in (ERRORS, TOTAL, SIZES, LAST)}


def test_events_feed_every_metric_of_their_probe() -> None:
    made = aggregator(ERRORS, TOTAL, SIZES, LAST)
    made.consume(Batch([record(-2), record(-2), record(-13, b"\xff"), record(5), record(2**32 - 2)]))
    numbers = made.copy()
    assert samples(numbers, "kprobe_open_errors_total") == {
        ("ENOENT", "bash"): 3,
        ("EACCES", r"\xff"): 1,
        ("ok", "bash"): 1,
    }
    assert samples(numbers, "kprobe_all_total") == {(): 5}
    assert samples(numbers, "kprobe_sizes") == {(): HistogramValue((0.0, 10.0), (4, 1, 0), -14)}
    assert samples(numbers, "kprobe_last") == {("bash",): -2, (r"\xff",): -13}
    assert samples(numbers, "kprobe_return_value") == {("open",): HistogramValue((1.0, 4.0), (0, 0, 1), 5)}
    assert samples(numbers, "kprobe_return_errors_total") == {("open", "ENOENT"): 3, ("open", "EACCES"): 1}
    assert numbers.events == {"open": 5}


def test_errors_without_a_name_are_one_label_set() -> None:
    made = aggregator()
    made.consume(Batch([record(-4000), record(-4001), record(-4095), record(-4096)]))
    assert samples(made.copy(), "kprobe_return_errors_total") == {("open", "unknown"): 3}


def test_errors_of_a_program_are_numbers() -> None:
    made = aggregator(returns=LONG._replace(errno=False))
    made.consume(Batch([record(-3)]))
    assert samples(made.copy(), "kprobe_return_errors_total") == {("open", "-3"): 1}


@pytest.mark.parametrize(("returns", "shown"), [(LONG, True), (PTR, False), (VOID, False), (None, False)])
def test_who_has_a_histogram_of_return_values(returns: ReturnType | None, shown: bool) -> None:
    made = aggregator(returns=returns)
    assert (("open",) in samples(made.copy(), "kprobe_return_value")) == shown


def test_an_error_pointer_counts_though_pointers_have_no_histogram() -> None:
    made = aggregator(returns=PTR)
    made.consume(Batch([record(2**64 - 12), record(0xFFFF888000000000)]))
    assert samples(made.copy(), "kprobe_return_errors_total") == {("open", "ENOMEM"): 1}


def test_probes_may_share_a_metric() -> None:
    made = aggregator(TOTAL)
    made.declare(probe("other", TOTAL))
    made.attach(Layout(8, "other", "other", "entry", "g"), count_hits=False)
    made.consume(Batch([record(0), record(0, layout_id=8), record(0, layout_id=8)]))
    numbers = made.copy()
    assert samples(numbers, "kprobe_all_total") == {(): 3}
    assert numbers.events == {"open": 1, "other": 2}


def test_a_probe_that_was_made_again_keeps_its_numbers() -> None:
    made = aggregator(TOTAL)
    made.consume(Batch([record(-2)]))
    made.attach(replace(OPEN, layout_id=9, event="open_2"))
    made.consume(Batch([record(-2, layout_id=9), record(-2)]))
    numbers = made.copy()
    assert samples(numbers, "kprobe_all_total") == {(): 3}
    assert samples(numbers, "kprobe_return_errors_total") == {("open", "ENOENT"): 3}
    assert numbers.events == {"open": 3}


def test_hits_are_the_kernels_where_it_counts_them() -> None:
    made = aggregator()
    assert made.copy().hits == {}
    made.consume(Batch([record(0)]))
    made.update_kernel(KernelCounts(hits={"open": 5}, misses={"open": 1}))
    numbers = made.copy()
    assert (numbers.hits, numbers.misses) == ({"open": 5}, {"open": 1})
    assert samples(numbers, "kprobe_hits_total") == {("open",): 5}
    assert samples(numbers, "kprobe_misses_total") == {("open",): 1}


def test_hits_are_the_events_if_the_kernel_does_not_count() -> None:
    made = aggregator(count_hits=True)
    made.consume(Batch([record(0), record(1)]))
    numbers = made.copy()
    assert (numbers.hits, numbers.misses) == ({"open": 2}, {})


def test_loss_is_told_by_its_source() -> None:
    made = aggregator(MetricSpec("kprobe_bytes_total", "counter", "Bytes.", "return", ()))
    made.update_kernel(KernelCounts(lost={"overrun": 3, "dropped": 0}, buffer_bytes=4096))
    made.consume(Batch([record(-2), record(None)], unparsed=2, lost=1000))
    made.consume(Batch([], unparsed=1))
    numbers = made.copy()
    assert numbers.lost == {"overrun": 3, "dropped": 0, "unparsed": 3, "negative": 1, "unreadable": 1}
    assert numbers.buffer_bytes == 4096


def test_decode_failures_and_overflows_are_counted() -> None:
    made = aggregator(ERRORS, limits=SeriesLimits(2, 20_000))
    made.consume(Batch([record(None), record(-5000), *(record(-2, b"%d" % n) for n in range(5))]))
    numbers = made.copy()
    assert numbers.decode_failures == {"errno": 2}
    assert numbers.overflows == {"kprobe_open_errors_total": 4}
    assert samples(numbers, "kprobe_open_errors_total") == {
        ("unknown", "bash"): 2,
        ("ENOENT", "0"): 1,
        ("__overflow__", "__overflow__"): 4,
    }


def test_a_copy_does_not_change_any_more() -> None:
    made = aggregator(ERRORS, TOTAL, SIZES, LAST, count_hits=True)
    made.consume(Batch([record(-2)]))
    numbers = made.copy()
    before = repr(numbers)
    made.consume(Batch([record(-13, b"new"), record(7)], unparsed=1))
    made.update_kernel(KernelCounts({"open": 9}, {"open": 9}, {"overrun": 9}, 9))
    assert repr(numbers) == before


FEEDS = st.lists(
    st.one_of(
        st.lists(
            st.tuples(st.integers(-5000, 2**33), st.sampled_from([b"a", b"b", b"c", None])), max_size=4
        ).map(lambda events: Batch([record(*event) for event in events], unparsed=len(events))),
        st.integers(0, 100).map(lambda n: KernelCounts({"open": n}, {"open": n // 2}, {"overrun": n // 3})),
    ),
    max_size=12,
)


def counters(numbers: Numbers) -> dict[tuple[str, ...], float]:
    """Return every number that must never decrease."""
    found: dict[tuple[str, ...], float] = {}
    for family in numbers.families:
        for labels, value in family.samples.items():
            if isinstance(value, HistogramValue):
                found |= {(family.name, *labels, str(n)): count for n, count in enumerate(value.counts)}
            elif family.type == "counter":
                found[family.name, *labels] = value
    for kind in ("events", "lost", "overflows", "decode_failures"):
        found |= {(kind, key): count for key, count in getattr(numbers, kind).items()}
    return found


@given(FEEDS)
def test_no_counter_ever_goes_down(feeds: list[Batch | KernelCounts]) -> None:
    added = MetricSpec("kprobe_bytes_total", "counter", "Bytes.", "return", (COMM,))
    made = aggregator(ERRORS, TOTAL, SIZES, added, limits=SeriesLimits(2, 20_000))
    before = counters(made.copy())
    for feed in feeds:
        if isinstance(feed, Batch):
            made.consume(feed)
        else:
            made.update_kernel(feed)
        after = counters(made.copy())
        assert all(after[key] >= count for key, count in before.items())
        before = after


def test_threads_lose_nothing() -> None:
    made = aggregator(ERRORS, TOTAL)
    batch = Batch([record(-2, b"%d" % number) for number in range(23)])

    def feed() -> None:
        for _ in range(20):
            made.consume(batch)

    threads = [threading.Thread(target=feed) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        numbers = made.copy()
        total = samples(numbers, "kprobe_all_total")[()]
        assert total == numbers.events["open"] == sum(samples(numbers, "kprobe_open_errors_total").values())
        assert total % 23 == 0
    for thread in threads:
        thread.join()
    assert samples(made.copy(), "kprobe_all_total") == {(): 23 * 20 * 4}


def test_where_the_agent_filters_hits_are_firings_and_events_what_passed() -> None:
    made = aggregator(TOTAL, count_hits=True, residual_filter=FAILED)
    made.consume(Batch([record(-2), record(3), record(-2)]))
    numbers = made.copy()
    assert numbers.hits == {"open": 3}
    assert numbers.events == {"open": 2}
    assert samples(numbers, "kprobe_all_total") == {(): 2}
    assert samples(numbers, "kprobe_return_value") == {("open",): HistogramValue((1.0, 4.0), (0, 0, 0), 0)}


def test_a_metrics_own_filter_narrows_that_metric_alone() -> None:
    some = MetricSpec("kprobe_some_total", "counter", "Some.", None, (), where=FAILED)
    made = aggregator(some, TOTAL)
    made.consume(Batch([record(-2), record(3)]))
    numbers = made.copy()
    assert samples(numbers, "kprobe_some_total") == {(): 1}
    assert samples(numbers, "kprobe_all_total") == {(): 2}
    assert numbers.events == {"open": 2}


def test_spreads_of_built_in_and_configured_histograms() -> None:
    made = aggregator(TOTAL, SIZES, LAST)
    made.consume(Batch([record(5), record(7), record(11)]))
    assert made.spreads() == {
        ("open", "return_value"): Spread((1.0, 4.0), (0, 0, 3)),
        ("open", "kprobe_sizes"): Spread((0.0, 10.0), (0, 2, 1)),
    }


def test_spread_keeps_label_sets_that_have_expired() -> None:
    now = [0.0]
    by_comm = SIZES._replace(labels=(COMM,))
    made = aggregator(by_comm, limits=SeriesLimits(10, 20_000, 60, lambda: now[0]))
    made.consume(Batch([record(5), record(11, b"cat")]))
    now[0] = 100.0
    made.consume(Batch([record(5)]))
    assert samples(made.copy(), "kprobe_sizes").keys() == {("bash",)}
    assert made.spreads()["open", "kprobe_sizes"].counts == (0, 2, 1)


def test_label_sets_expire_as_time_goes_by() -> None:
    now = [0.0]
    made = aggregator(ERRORS, limits=SeriesLimits(10, 20_000, 60, lambda: now[0]))
    made.consume(Batch([record(-2, b"gone"), record(-2, b"there")]))
    for step in range(1, 6):
        now[0] = step * 16.0
        made.consume(Batch([record(-2, b"there")]))
    assert samples(made.copy(), "kprobe_open_errors_total") == {("ENOENT", "there"): 6}


def test_idle_label_sets_of_one_metric_make_room_for_another() -> None:
    now = [0.0]
    made = aggregator(ERRORS, limits=SeriesLimits(10, 2, None, lambda: now[0]))
    made.declare(probe("close", MetricSpec("kprobe_closes_total", "counter", "Closed.", None, (COMM,))))
    made.attach(replace(OPEN, layout_id=8, probe="close", event="close"))
    made.consume(Batch([record(-2, b"a"), record(-2, b"b")]))
    for _ in range(6):
        now[0] += IDLE / 4
        made.consume(Batch())
    made.consume(Batch([record(0, b"c", layout_id=8), record(0, b"d", layout_id=8)]))
    assert samples(made.copy(), "kprobe_closes_total") == {("c",): 1, ("d",): 1}
    assert samples(made.copy(), "kprobe_open_errors_total") == {}


def test_a_probe_that_did_not_come_up_has_no_hits() -> None:
    made = aggregator(count_hits=True)
    made.detach(OPEN)
    assert made.copy().hits == {}


NEXT = replace(OPEN, layout_id=17, event="open_2")


def test_what_a_detached_layout_came_to_stays_with_its_probe() -> None:
    made = aggregator(TOTAL, ERRORS, count_hits=True)
    made.consume(Batch([record(-2), record(3)]))
    made.detach(OPEN)
    made.consume(Batch([record(-2)]))  # too late: its layout is detached
    assert (made.copy().hits, made.copy().events) == ({"open": 2}, {"open": 2})
    assert made.copy().lost["unparsed"] == 1
    made.redeclare([probe("open", TOTAL, ERRORS)])
    made.attach(NEXT, count_hits=True)
    made.consume(Batch([record(-2, layout_id=17)]))
    numbers = made.copy()
    assert (numbers.hits, numbers.events) == ({"open": 3}, {"open": 3})
    assert samples(numbers, "kprobe_all_total") == {(): 3}
    assert samples(numbers, "kprobe_open_errors_total") == {("ENOENT", "bash"): 2, ("ok", "bash"): 1}


def test_the_kernels_counts_go_on_from_0() -> None:
    """Counts of an earlier epoch belong to an earlier event and arrive too late."""
    made = aggregator()
    late = KernelCounts({"open": 5}, {"open": 1}, {"overrun": 2}, epoch=made.epoch)
    made.update_kernel(late)
    made.detach(OPEN)
    made.update_kernel(late)
    made.update_kernel(KernelCounts({"open": 9}, {"open": 4}, {"overrun": 3}, epoch=made.epoch))
    numbers = made.copy()
    assert (numbers.hits, numbers.misses, numbers.lost["overrun"]) == ({"open": 14}, {"open": 5}, 3)


def test_one_of_two_layouts_goes_and_the_other_goes_on() -> None:
    made = aggregator(TOTAL)
    made.attach(NEXT)
    made.consume(Batch([record(1), record(2, layout_id=17)]))
    late = KernelCounts({"open": 5 + 3}, epoch=made.epoch)
    made.update_kernel(late)
    made.detach_one(OPEN, 6)
    made.update_kernel(late)
    made.update_kernel(KernelCounts({"open": 4}, epoch=made.epoch))
    made.consume(Batch([record(3, layout_id=17), record(4)]))
    numbers = made.copy()
    assert (numbers.hits, numbers.events) == ({"open": 6 + 4}, {"open": 3})
    assert samples(numbers, "kprobe_all_total") == {(): 3}
    assert numbers.lost["unparsed"] == 1


def test_an_undeclared_metric_is_removed_and_makes_room() -> None:
    limits = SeriesLimits(2, 2)
    made = aggregator(ERRORS, limits=limits)
    made.consume(Batch([record(-2, b"a"), record(-2, b"b")]))
    made.detach(OPEN)
    made.redeclare([probe("other", TOTAL)])
    assert limits.used == 0
    numbers = made.copy()
    assert numbers.events == {"other": 0}
    assert set(numbers.overflows) == {"kprobe_all_total"}
    assert all("open" not in labels for family in numbers.families for labels in family.samples)
    made.exemplify("open", exemplar_of_span(1, 2, 0.5, 1.0))  # from a call that was exported meanwhile


def test_a_metric_that_is_another_one_begins_at_0() -> None:
    made = aggregator(TOTAL, ERRORS)
    made.consume(Batch([record(-2)]))
    made.detach(OPEN)
    other = TOTAL._replace(help="Said otherwise.")
    made.redeclare([probe("open", other, ERRORS)], {"kprobe_open_errors_total"})
    numbers = made.copy()
    assert families(numbers)["kprobe_all_total"].help == "Said otherwise."
    assert samples(numbers, "kprobe_all_total") == {(): 1}
    assert samples(numbers, "kprobe_open_errors_total") == {}
    assert samples(numbers, "kprobe_return_errors_total") == {("open", "ENOENT"): 1}


def test_other_buckets_begin_at_0() -> None:
    made = aggregator()
    made.consume(Batch([record(3)]))
    made.detach(OPEN)
    made.redeclare([ProbeMetrics("open", (), (2.0,), LONG)])
    assert samples(made.copy(), "kprobe_return_value") == {("open",): HistogramValue((2.0,), (0, 0), 0)}


CHANGES = st.lists(
    st.one_of(
        st.integers(0, 9).map(lambda number: Batch([record(-2, b"%d" % number)] * number)),
        st.integers(0, 9),
        st.sampled_from(["change", "switch off", "switch on"]),
    ),
    max_size=30,
)


@given(CHANGES, st.booleans())
def test_through_any_changes_nothing_is_lost_or_falls(changes: list[Any], count_hits: bool) -> None:
    """After batches, hits that the kernel counts, and changes in any order, hits and events are exact."""
    made = aggregator(ERRORS, TOTAL, count_hits=count_hits)
    layout_id: int | None = 7
    last, expected, firings, raw = 7, 0, 0, 0
    before = counters(made.copy())
    for change in changes:
        if isinstance(change, Batch) and layout_id is not None:
            made.consume(Batch([(layout_id, *record[1:]) for record in change.records]))
            expected += len(change.records)
        elif isinstance(change, int) and layout_id is not None and not count_hits:
            firings, raw = firings + change, raw + change
            made.update_kernel(KernelCounts({"open": raw}, {"open": raw}, epoch=made.epoch))
        elif change in ("change", "switch off") and layout_id is not None:
            made.detach(replace(OPEN, layout_id=layout_id))
            made.redeclare([probe("open", ERRORS, TOTAL)])
            layout_id, raw = None, 0
        if change in ("change", "switch on") and layout_id is None:
            layout_id = last = last + 1
            made.attach(replace(OPEN, layout_id=layout_id), count_hits=count_hits)
        after = counters(made.copy())
        assert all(after.get(key, 0) >= count for key, count in before.items())
        before = after
    numbers = made.copy()
    assert numbers.events == {"open": expected}
    assert numbers.hits.get("open", 0) == (expected if count_hits else firings)
    assert samples(numbers, "kprobe_all_total") == {(): expected}
