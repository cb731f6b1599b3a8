"""What the records of one layout add up to, and what their metrics then hold."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.numbers import HistogramCell, MetricNumbers, ProbeNumbers
from kprobe_exporter.aggregate.recipes import recipe
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.sums import Sums
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.model.aggregation import Group, Recipe, Refused, Tally
from kprobe_exporter.model.records import TID, TIME, Record
from kprobe_exporter.model.snapshot import HistogramValue
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics
from kprobe_exporter.model.values import MAX_ERRNO, ReturnType
from kprobe_exporter.plan.metric import where
from tests.support.return_records import INT, LONG, PTR, U64, layout, record


def tallies(group: Group, *records: Record) -> list[Tally | Refused]:
    """Return what these records add up to."""
    sums = Sums(layout(), Recipe((group,)))
    for each in records:
        sums.add(each)
    arrived, passed, made = sums.take()
    assert (arrived, passed) == (len(records), len(records))
    assert sums.take() == (0, 0, [])
    return made


def keys(*fields: str) -> Group:
    return Group(0, keys=fields)


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ([], ()),
        (["comm"], (b"bash",)),
        (["return"], (-2,)),
        (["symbol"], (b"vfs_read",)),
        (["absent"], (None,)),
        (["cpu", "comm"], (2, b"bash")),
        (["comm", "tid", "pid", "cpu", "count"], (b"bash", 77, 66, 2, 23)),
        (["symbol", "return"], (b"vfs_read", -2)),
        (["absent", "comm"], (None, b"bash")),
        (["comm", "comm"], (b"bash", b"bash")),
    ],
)
def test_the_key_of_a_record(fields: Sequence[str], values: tuple[object, ...]) -> None:
    one = record(2**32 - 2, 23)
    assert tallies(keys(*fields), one, one) == [Tally(3, 0, values, 2, 0)]  # type: ignore[arg-type]


def test_a_tally_for_each_key() -> None:
    made = tallies(keys("comm"), *(record(comm=comm) for comm in (b"a", b"b", b"a", None)))
    assert made == [Tally(3, 0, (b"a",), 2, 0), Tally(3, 0, (b"b",), 1, 0), Tally(3, 0, (None,), 1, 0)]


def test_return_values_that_mean_the_same_error_are_one_key() -> None:
    assert tallies(keys("return"), record(-2), record(2**32 - 2)) == [Tally(3, 0, (-2,), 2, 0)]


def test_the_last_value_is_that_of_the_latest_time() -> None:
    group = Group(0, keys=("comm",), value="count", last=True)
    early, late = record(count=5), record(count=7)
    late = (*late[:TIME], 2_000, *late[TIME + 1 :])
    assert tallies(group, late, early) == [Tally(3, 0, (b"bash",), 2, 7, 2_000)]


def test_of_one_time_the_last_record_is_the_last() -> None:
    group = Group(0, keys=("comm",), value="count", last=True)
    one, other = record(count=5), record(count=7)
    assert tallies(group, one, other, one) == [Tally(3, 0, (b"bash",), 3, 5, one[TIME])]


def test_records_that_do_not_meet_the_condition_change_nothing() -> None:
    group = Group(0, value="count", where=where(parse_formula('return < 0 && comm != "zsh"')))
    records = [record(-2, 3), record(-2, 4, b"zsh"), record(2, 5), record(2**32 - 1, 6)]
    assert tallies(group, *records) == [Tally(3, 0, (), 2, 9)]


def test_the_recipes_filter_decides_what_passed() -> None:
    sums = Sums(layout(), Recipe((keys("comm"),), where(parse_formula("count > 3"))))
    for count in (3, 4, 5):
        sums.add(record(count=count))
    assert sums.take() == (3, 2, [Tally(3, 0, (b"bash",), 2, 0)])


def test_a_label_of_a_threads_cgroup_is_looked_up_when_the_record_comes() -> None:
    asked = []

    def cgroup(tid: int, time: int) -> bytes | None:
        asked.append((tid, time))
        return b"/pod" if tid == record(0)[TID] else None

    group = Group(0, keys=("tid", "comm", "tid"), cgroups=(0,))
    sums = Sums(layout(), Recipe((group, keys("tid"))), cgroup)
    sums.add(record(0))
    assert asked == [(record(0)[TID], record(0)[TIME])]
    expected = [Tally(3, 0, (b"/pod", b"bash", 77), 1, 0), Tally(3, 0, (77,), 1, 0)]
    assert sums.take() == (1, 1, expected)
    unknown = Sums(layout(), Recipe((group,)))
    unknown.add(record(0))
    assert unknown.take()[2] == [Tally(3, 0, (None, b"bash", 77), 1, 0)]


def test_facts_of_a_thread_looked_up_with_its_cgroup() -> None:
    def fact(name: str, tid: int, time: int) -> bytes:
        return b"%s of %d at %d" % (name.encode(), tid, time)

    group = Group(0, keys=("tid", "tid", "tid"), cgroups=(0, 1, 2), facts=("exe", "", "uid"))
    sums = Sums(layout(), Recipe((group,)), lambda tid, time: b"/pod", fact)
    at = b"of %d at %d" % (record(0)[TID], record(0)[TIME])
    expected = Tally(3, 0, (b"exe " + at, b"/pod", b"uid " + at), 1, 0)
    sums.add(record(0))
    assert sums.take() == (1, 1, [expected])
    assert sums.looked_up(expected._replace(key=(record(0)[TID],) * 3), record(0)[TIME]) == expected


class Metric:
    """One metric, the number of its refused values, and the records that it takes."""

    def __init__(
        self,
        kind: Literal["counter", "gauge", "histogram"],
        value: str | None,
        buckets: tuple[float, ...] = (),
        scale: float = 1.0,
    ) -> None:
        self.refused: dict[str, int] = {}
        spec = MetricSpec("m", kind, "help", value, (LabelSpec("comm", "comm"),), buckets, scale)
        self._numbers = MetricNumbers(spec, SeriesLimits(10, 20_000), Counter())
        self._take = self._numbers.take(spec)
        self._sums = Sums(layout(), recipe(layout(), ProbeMetrics("p", (spec,), (), LONG)))

    def update(self, one: Record) -> None:
        self._sums.add(one)
        for tally in self._sums.take()[2]:
            if isinstance(tally, Refused):
                self.refused = {"negative": tally.negative, "unreadable": tally.unreadable}
            elif tally.feeds == 0:
                self._take(tally)

    @property
    def cells(self) -> dict[str, Any]:
        return {key[0]: cell for key, cell in self._numbers.series.cells.items()}

    @property
    def values(self) -> dict[str, float]:
        return {key: cell[0] for key, cell in self.cells.items()}


def test_a_counter_counts_events() -> None:
    metric = Metric("counter", None)
    for comm in (b"a", b"b", b"a", None):
        metric.update(record(comm=comm))
    assert metric.values == {"a": 2, "b": 1, "unknown": 1}


@pytest.mark.parametrize(
    ("value", "negative", "unreadable"), [(-1, 1, 0), (None, 0, 1), (b"7", 0, 1), (0, 0, 0)]
)
def test_a_counter_refuses_what_would_make_it_fall(value: object, negative: int, unreadable: int) -> None:
    metric = Metric("counter", "count")
    for each in (5, value, 2**64 - 1):
        metric.update(record(count=each))
    assert metric.values == {"bash": 2**64 + 4}
    assert metric.refused == ({"negative": negative, "unreadable": unreadable} if value != 0 else {})


@pytest.mark.parametrize("kind", ["counter", "gauge", "histogram"])
def test_what_is_refused_makes_no_label_set(kind: Any) -> None:
    metric = Metric(kind, "count")
    metric.update(record(count=None))
    assert (metric.cells, metric.refused) == ({}, {"negative": 0, "unreadable": 1})


def test_an_error_read_too_wide_is_negative() -> None:
    metric = Metric("counter", "return")
    metric.update(record(2**32 - 2))
    assert (metric.cells, metric.refused) == ({}, {"negative": 1, "unreadable": 0})


def test_a_gauge_keeps_the_last_value() -> None:
    metric = Metric("gauge", "count")
    for value in (5, -3, None):
        metric.update(record(count=value))
    assert metric.values == {"bash": -3}
    assert metric.refused == {"negative": 0, "unreadable": 1}


def test_a_gauge_keeps_the_latest_value_whichever_cpu_is_read_first() -> None:
    metric = Metric("gauge", "count")
    early, late = record(count=1), record(count=2)
    metric.update((*late[:TIME], 2_000, *late[TIME + 1 :]))
    metric.update(early)
    assert metric.values == {"bash": 2}


@pytest.mark.parametrize(
    ("value", "bucket"), [(-5, 0), (0, 0), (1, 1), (2, 2), (4, 2), (5, 3), (2**64, 3), (-(2**63), 0)]
)
def test_a_value_falls_into_the_first_bucket_that_holds_it(value: int, bucket: int) -> None:
    metric = Metric("histogram", "count", (0.0, 1.0, 4.0))
    metric.update(record(count=value))
    (cell,) = metric.cells.values()
    assert cell.counts == [number == bucket for number in range(4)]
    assert cell.sum == value


@given(st.lists(st.integers(-(2**63), 2**64)), st.sets(st.integers(-100, 100), max_size=5))
def test_buckets_are_what_prometheus_means_by_le(values: list[int], bounds: set[int]) -> None:
    rising = tuple(float(bound) for bound in sorted(bounds))
    metric = Metric("histogram", "count", rising)
    for value in values:
        metric.update(record(count=value))
    shown = (metric.cells["bash"] if values else HistogramCell(rising)).value()
    assert shown == HistogramValue(rising, shown.counts, sum(values))
    for number, bound in enumerate(rising):
        assert sum(shown.counts[: number + 1]) == sum(value <= bound for value in values)
    assert sum(shown.counts) == len(values)


@pytest.mark.parametrize(
    ("returns", "value", "counts", "errors"),
    [
        (LONG, 0, [1, 0], {}),
        (LONG, 5, [0, 1], {}),
        (LONG, -1, [0, 0], {1: 1}),
        (LONG, -MAX_ERRNO, [0, 0], {MAX_ERRNO: 1}),
        (LONG, -MAX_ERRNO - 1, [0, 0], {}),
        (LONG, 2**32 - 22, [0, 0], {22: 1}),
        (LONG, None, [0, 0], {}),
        (INT, -22, [0, 0], {22: 1}),
        (U64, 2**64 - 22, [0, 1], {}),
        (PTR, 0, [0, 0], {}),
        (PTR, 0xFFFF888000000000, [0, 0], {}),
        (PTR, 2**64 - 12, [0, 0], {12: 1}),
    ],
)
def test_return_values(returns: ReturnType, value: object, counts: list[int], errors: dict[int, int]) -> None:
    metrics = ProbeMetrics("p", (), (1.0,), returns)
    numbers = ProbeNumbers(metrics, HistogramCell(metrics.return_buckets))
    takes = numbers.takes()
    sums = Sums(layout(returns), recipe(layout(returns), metrics))
    sums.add(record(value))
    for tally in sums.take()[2]:
        assert isinstance(tally, Tally)
        takes[tally.feeds](tally)
    assert (numbers.returned.counts, numbers.errors) == (counts, errors)


@pytest.mark.parametrize(("kind", "cell"), [("counter", 1.25), ("gauge", 0.5), ("histogram", ([0, 2], 1.25))])
def test_a_scale_multiplies_the_value(kind: Any, cell: object) -> None:
    metric = Metric(kind, "count", (0.1,), 0.25)
    for value in (3, 2):
        metric.update(record(count=value))
    (found,) = metric.cells.values()
    assert ((found.counts, found.sum) if kind == "histogram" else found[0]) == cell


def test_a_whole_scale_keeps_large_counts_exact() -> None:
    metric = Metric("counter", "count", scale=512.0)
    metric.update(record(count=2**60 + 1))
    assert metric.values == {"bash": (2**60 + 1) * 512}
