"""What one event does to one metric."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.series import Series, SeriesLimits
from kprobe_exporter.aggregate.updates import (
    HistogramCell,
    counter_update,
    getter,
    guarded,
    key_getter,
    passes,
    return_update,
)
from kprobe_exporter.aggregate.wiring import UPDATES
from kprobe_exporter.grammar.evaluate import compile_filter
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.values import (
    MAX_ERRNO,
    TID,
    TIME,
    Arg,
    HistogramValue,
    LabelSpec,
    Layout,
    MetricSpec,
    Record,
    ReturnType,
    Where,
)

LONG = ReturnType("long", "s64", signed=True, wide=True)
INT = ReturnType("int", "s32", signed=True)
PTR = ReturnType("ptr", "x64", pointer=True)
U64 = ReturnType("u64", "u64")


def labels(*fields: str) -> list[LabelSpec]:
    return [LabelSpec(field, field) for field in fields]


def layout(returns: ReturnType | None = LONG) -> Layout:
    args = (Arg("return", "int"), Arg("count", "int"), Arg("comm", "str"))
    return Layout(3, "p", "p", "return", "vfs_read", args, returns)


def record(returned: object = 0, count: object = 0, comm: object = b"bash") -> Record:
    return (3, 1_000, 2, 77, 66, b"ksys_read", returned, count, comm)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu", 2),
        ("tid", 77),
        ("pid", 66),
        ("caller", b"ksys_read"),
        ("symbol", b"vfs_read"),
        ("return", 5),
        ("count", 23),
        ("comm", b"bash"),
        ("absent", None),
        ("", None),
    ],
)
def test_a_field_of_a_record(field: str, value: object) -> None:
    assert getter(layout(), field)(record(5, 23)) == value
    assert key_getter(layout(), labels(field))(record(5, 23)) == (value,)


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ([], ()),
        (["cpu", "comm"], (2, b"bash")),
        (["comm", "tid", "pid", "cpu", "count"], (b"bash", 77, 66, 2, 23)),
        (["symbol", "return"], (b"vfs_read", -2)),
        (["absent", "comm"], (None, b"bash")),
        (["comm", "comm"], (b"bash", b"bash")),
    ],
)
def test_several_fields_at_once(fields: Sequence[str], values: tuple[object, ...]) -> None:
    assert key_getter(layout(), labels(*fields))(record(2**32 - 2, 23)) == values


WIDTHS = [
    (LONG, -2, -2),
    (LONG, 2**32 - 1, -1),
    (LONG, 2**32 - MAX_ERRNO, -MAX_ERRNO),
    (LONG, 2**32 - MAX_ERRNO - 1, 2**32 - MAX_ERRNO - 1),
    (LONG, 2**32, 2**32),
    (INT, 2**31 - 1, 2**31 - 1),
    (INT, -2, -2),
    (U64, 2**32 - 2, 2**32 - 2),
    (U64, 2**64 - 2, 2**64 - 2),
    (PTR, 2**64 - 2, -2),
    (PTR, 2**64 - MAX_ERRNO, -MAX_ERRNO),
    (PTR, 2**64 - MAX_ERRNO - 1, 2**64 - MAX_ERRNO - 1),
    (PTR, 2**32 - 2, 2**32 - 2),
    (PTR, 0, 0),
    (None, 2**32 - 2, 2**32 - 2),
    (LONG, None, None),
]


@pytest.mark.parametrize(("returns", "raw", "value"), WIDTHS)
def test_the_width_of_a_return_value(returns: ReturnType | None, raw: object, value: object) -> None:
    assert getter(layout(returns), "return")(record(raw)) == value
    assert key_getter(layout(returns), labels("return", "comm"))(record(raw)) == (value, b"bash")


class Metric:
    """One metric, the reasons of refused events, and the update that each event goes through."""

    def __init__(
        self,
        kind: Literal["counter", "gauge", "histogram"],
        value: str | None,
        buckets: tuple[float, ...] = (),
        returns: ReturnType | None = LONG,
    ) -> None:
        self.refused: list[str] = []
        labels = (LabelSpec("comm", "comm"),)
        spec = MetricSpec("m", kind, "help", value, labels, buckets)
        make = (lambda: HistogramCell(len(buckets))) if kind == "histogram" else (lambda: [0])
        self.series: Series[Any] = Series(labels, make, SeriesLimits(10, 20_000), lambda _, __: None)
        self.update = UPDATES[kind](layout(returns), spec, self.series, self.refused.append, None)

    @property
    def cells(self) -> dict[str, Any]:
        return {key[0]: cell for key, cell in self.series.cells.items()}


def test_a_counter_counts_events() -> None:
    metric = Metric("counter", None)
    for comm in (b"a", b"b", b"a", None):
        metric.update(record(comm=comm))
    assert metric.cells == {"a": [2], "b": [1], "unknown": [1]}


def test_a_counter_adds_values_and_refuses_what_would_make_it_fall() -> None:
    metric = Metric("counter", "count")
    for value in (5, -1, 0, None, b"7", 2**64 - 1):
        metric.update(record(count=value))
    assert metric.cells == {"bash": [2**64 + 4]}
    assert metric.refused == ["negative", "unreadable", "unreadable"]


@pytest.mark.parametrize("kind", ["counter", "gauge", "histogram"])
def test_what_is_refused_makes_no_label_set(kind: Any) -> None:
    metric = Metric(kind, "count")
    metric.update(record(count=None))
    assert (metric.cells, metric.refused) == ({}, ["unreadable"])


def test_an_error_read_too_wide_is_negative() -> None:
    metric = Metric("counter", "return")
    metric.update(record(2**32 - 2))
    assert (metric.cells, metric.refused) == ({}, ["negative"])


def test_a_gauge_keeps_the_last_value() -> None:
    metric = Metric("gauge", "count")
    for value in (5, -3, None):
        metric.update(record(count=value))
    assert metric.cells == {"bash": [-3]}
    assert metric.refused == ["unreadable"]


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
    cell = HistogramCell(len(rising))
    for value in values:
        cell.observe(rising, value)
    shown = cell.value(rising)
    assert shown == HistogramValue(rising, tuple(cell.counts), sum(values))
    for number, bound in enumerate(rising):
        assert sum(shown.counts[: number + 1]) == sum(value <= bound for value in values)
    assert sum(shown.counts) == len(values)


@pytest.mark.parametrize(
    ("returns", "value", "counts", "errors"),
    [
        (LONG, 0, [1, 0], []),
        (LONG, 5, [0, 1], []),
        (LONG, -1, [0, 0], [1]),
        (LONG, -MAX_ERRNO, [0, 0], [MAX_ERRNO]),
        (LONG, -MAX_ERRNO - 1, [0, 0], []),
        (LONG, 2**32 - 22, [0, 0], [22]),
        (LONG, None, [0, 0], []),
        (INT, -22, [0, 0], [22]),
        (U64, 2**64 - 22, [0, 1], []),
        (PTR, 0, [0, 0], []),
        (PTR, 0xFFFF888000000000, [0, 0], []),
        (PTR, 2**64 - 12, [0, 0], [12]),
    ],
)
def test_return_values(returns: ReturnType, value: object, counts: list[int], errors: list[int]) -> None:
    cell = HistogramCell(1)
    found: list[int] = []
    return_update(layout(returns), returns, (1.0,), cell, found.append)(record(value))
    assert (cell.counts, found) == (counts, errors)


@pytest.mark.parametrize(
    ("kind", "cell"), [("counter", [1.25]), ("gauge", [0.5]), ("histogram", ([0, 2], 1.25))]
)
def test_a_scale_multiplies_the_value(kind: Any, cell: object) -> None:
    series: Series[Any] = Series(
        (), (lambda: HistogramCell(1)) if kind == "histogram" else (lambda: [0]), SeriesLimits(10, 10), print
    )
    spec = MetricSpec("m", kind, "help", "count", (), (0.1,), scale=0.25)
    update = UPDATES[kind](layout(LONG), spec, series, lambda _: None, None)
    for value in (3, 2):
        update(record(count=value))
    (found,) = series.cells.values()
    assert ((found.counts, found.sum) if kind == "histogram" else found) == cell


def test_a_whole_scale_keeps_large_counts_exact() -> None:
    series: Series[list[float]] = Series((), lambda: [0], SeriesLimits(10, 10), print)
    spec = MetricSpec("m", "counter", "help", "count", (), scale=512.0)
    counter_update(layout(LONG), spec, series, lambda _: None)(record(count=2**60 + 1))
    assert series.cells[()] == [(2**60 + 1) * 512]


def test_a_filter_guards_an_update() -> None:
    seen: list[Record] = []
    parsed = parse_filter('return < 0 && comm == "bash" && cpu != 3')
    where = Where(tuple(parsed.fields), compile_filter(parsed))
    update = guarded(passes(layout(LONG), where), seen.append)
    records = [record(-2), record(-2, comm=b"zsh"), record(2), record(None), record(2**32 - 22)]
    for each in records:
        update(each)
    assert seen == [records[0], records[4]]  # the last is the error -22, without its sign


def test_a_label_of_a_threads_cgroup_is_found_at_the_time_of_the_event() -> None:
    asked = []

    def cgroup(tid: int, time: int) -> bytes | None:
        asked.append((tid, time))
        return b"/pod" if tid == record(0)[TID] else None

    pod = LabelSpec("pod", "tid", (("pod", str),))
    take = key_getter(layout(), [pod, LabelSpec("comm", "comm")], cgroup)
    assert take(record(0)) == (b"/pod", b"bash")
    assert asked == [(record(0)[TID], record(0)[TIME])]
    assert key_getter(layout(), [pod])(record(0)) == (None,)
