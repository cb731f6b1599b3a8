"""The hist triggers of a plan: what each metric needs, the text of the triggers, and their size."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from kprobe_exporter.config.model import GUESSED_RETURN, Attach, Label, Metric, Probe
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.hist import HistFeed, HistTable
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan import JoinedSpec, Kernel, plan_probe
from kprobe_exporter.plan.metric import NO_HIST
from tests.support.planned import EXEC, EXIT, attach, counter, formats, probe

WIDE = "return >= 4294963201 && return <= 4294967295"
NOT_WIDE = "(return < 4294963201 || return > 4294967295)"
EVERY = "hist:keys=common_cpu:size=1024"
POSITIVE = "hist:keys=return.log2:vals=return:size=128 if return > 0"


def plans(made: Probe, *, hist: bool = True, max_series: int = 1000) -> tuple[ProbeSpec | Unsupported, ...]:
    kernel = Kernel(formats, counts_tracepoints=hist)
    found = plan_probe(made, "ns", DECODERS, kernel, itertools.count(), max_series).alternatives
    return tuple(way for way in found if not isinstance(way, JoinedSpec))


def kernel_probe(*ways: Attach, metrics: tuple[Metric, ...] = (), **more: Any) -> Probe:
    return probe(*ways, metrics=metrics, aggregate="kernel", **more)


def spec(made: Probe, **more: Any) -> ProbeSpec:
    first = plans(made, **more)[0]
    assert isinstance(first, ProbeSpec)
    for table in first.tables:
        if table.condition is not None:
            parse_filter(table.condition)  # our own grammar accepts it, as the kernel would
    return first


def triggers(*ways: Attach, metrics: tuple[Metric, ...] = ()) -> list[str]:
    return [table.trigger for table in spec(kernel_probe(*ways, metrics=metrics)).tables]


def histogram(*fields: str, value: str) -> Metric:
    return Metric("histogram", "x", "help", value, tuple(Label(f"l_{f}", f) for f in fields), (1.0, 4.0))


@pytest.mark.parametrize(
    ("way", "metrics", "expected"),
    [
        (attach("kprobe:f"), (), [EVERY]),
        (attach("kprobe:f", filter_text="common_pid == 7"), (counter(),), [f"{EVERY} if common_pid == 7"]),
        (
            attach("kprobe:f", n="$arg1:u32"),
            (counter("comm", "tid"), counter("cpu", value="n")),
            ["hist:keys=comm,common_pid:size=4096", "hist:keys=common_cpu:vals=n:size=4096"],
        ),
        (
            attach("kprobe:f", n="$arg1:u32"),
            (histogram("comm", value="n"),),
            ["hist:keys=comm,n.log2:vals=n:size=16384 if n > 0", "hist:keys=comm,n:size=16384 if n == 0"],
        ),
        (
            attach("kprobe:f", n="$arg1:s32"),
            (counter(value="n"),),
            ["hist:keys=common_cpu:vals=n:size=1024 if n >= 0", f"{EVERY} if n < 0", EVERY],
        ),
        (
            attach("kretprobe:f", "ssize_t"),
            (),
            [POSITIVE, "hist:keys=return:size=512 if return <= 0 && return >= -4095", EVERY],
        ),
        (
            replace(attach("kretprobe:f", filter_text="return != 0"), returns=GUESSED_RETURN),
            (counter("comm"),),
            [
                "hist:keys=comm:size=4096 if return != 0",
                f"hist:keys=return.log2:vals=return,return_high:size=128"
                f" if (return != 0) && (return > 0 && {NOT_WIDE})",
                "hist:keys=return:size=512"
                f" if (return != 0) && ((return <= 0 && return >= -4095) || ({WIDE}))",
            ],
        ),
        (attach("kretprobe:f", "u8"), (), [POSITIVE, "hist:keys=return:size=512 if return == 0", EVERY]),
        # -4095 would be truncated to 1.
        (attach("kretprobe:f", "s8"), (), [POSITIVE, "hist:keys=return:size=512 if return <= 0", EVERY]),
        (
            attach("kretprobe:f", "ptr"),
            (),
            ["hist:keys=return:size=512 if return >= 18446744073709547521", EVERY],
        ),
    ],
)
def test_triggers(way: Attach, metrics: tuple[Metric, ...], expected: list[str]) -> None:
    assert triggers(way, metrics=metrics) == expected


def test_a_condition_is_the_kernels() -> None:
    metric = Metric("counter", "x_total", "help", where="tid != 3 || cpu == 1")
    assert triggers(attach("kprobe:f", filter_text="common_pid > 1"), metrics=(metric,))[0] == (
        "hist:keys=common_cpu:size=1024 if (common_pid > 1) && (common_pid != 3 || CPU == 1)"
    )


def test_nothing_else_is_written_of_a_function() -> None:
    made = kernel_probe(attach("kprobe:f", filter_text="n > 1", n="$arg1"), metrics=(counter("n", "comm"),))
    found = spec(made)
    assert found.line("g", "e") == "p:g/e f n=$arg1:x64 comm=$comm:string"
    assert (found.plan, found.filter, found.because) == ("kernel", None, "aggregate: kernel")


def test_without_a_histogram_of_return_values_only_errors_are_kept() -> None:
    way = attach("kretprobe:f", "long")
    with_it = spec(kernel_probe(way)).tables
    without = spec(kernel_probe(way, return_buckets=())).tables
    assert [feed.use for table in without for feed in table.feeds] == ["errors"]
    assert len(without) < len(with_it)


def test_equal_triggers_are_one() -> None:
    found = spec(kernel_probe(attach("kprobe:f"), metrics=(counter("comm"), counter("comm"))))
    assert [table.feeds for table in found.tables] == [(HistFeed(0, "add", (0,)), HistFeed(1, "add", (0,)))]


def passed(tables: tuple[HistTable, ...]) -> list[str]:
    return [table.trigger for table in tables if table.passed]


def test_what_passed_is_counted_once() -> None:
    """What passed is counted by a table without its own condition, two complementary ones or an extra one."""
    way = attach("kretprobe:f", "int", "common_pid == 7", n="$arg1:u32")
    for metrics, number in (((counter("comm"), counter("cpu")), 1), ((histogram(value="n"),), 2), ((), 1)):
        found = spec(kernel_probe(way, metrics=metrics)).tables
        assert len(passed(found)) == number
    both = spec(kernel_probe(way, metrics=(histogram(value="n"),))).tables
    assert [text.partition(" if ")[2] for text in passed(both)] == [
        "(common_pid == 7) && (n > 0)",
        "(common_pid == 7) && (n == 0)",
    ]


@pytest.mark.parametrize(("series", "rows"), [(1, 128), (32, 128), (33, 256), (1000, 4096), (10**6, 1 << 17)])
def test_room(series: int, rows: int) -> None:
    (table,) = spec(kernel_probe(attach("kprobe:f"), metrics=(counter("comm"),)), max_series=series).tables
    assert table.size == rows


def test_a_tracepoint_itself_or_else_an_eprobe() -> None:
    way = attach(f"tracepoint:{EXIT}", "long", "return < 0", **{"return": "ret"})
    own, eprobe = plans(kernel_probe(way, metrics=(counter("return"),)))
    assert isinstance(own, ProbeSpec)
    assert isinstance(eprobe, ProbeSpec)
    assert (own.file, own.system, own.event, own.plan) == (None, "syscalls", "sys_exit_openat", "kernel")
    assert own.tables[0].trigger == "hist:keys=ret:size=4096 if ret < 0"
    assert own.tables[0].keys[0].field == "return"
    assert eprobe.line("g", "e") == "e:g/e syscalls.sys_exit_openat return=$ret:s64"
    assert eprobe.tables[0].trigger == "hist:keys=return:size=4096 if return < 0"
    assert eprobe.filter is None


def test_only_an_eprobe_knows_a_threads_name() -> None:
    (eprobe,) = plans(kernel_probe(attach(f"tracepoint:{EXEC}"), metrics=(counter("comm"),)))
    assert isinstance(eprobe, ProbeSpec)
    assert eprobe.tables[0].trigger == "hist:keys=comm:size=4096"


def test_a_text_is_no_key() -> None:
    way = attach(f"tracepoint:{EXEC}", file="filename")
    for found in plans(kernel_probe(way, metrics=(counter("file"),))):
        assert isinstance(found, Unsupported)
        assert "'file' is not a plain number" in found.reason


@pytest.mark.parametrize(
    ("way", "metrics", "line"),
    [
        (attach("kprobe:f"), (), "p:g/e f"),
        # Without a type, some kernels would take one from BTF, and show another number than a table.
        (attach("kprobe:f", n="$arg1"), (counter("n"),), "p:g/e f n=$arg1:x64"),
        (attach("kretprobe:f", "long", "return < 0"), (counter("comm"),), None),
        (attach(f"tracepoint:{EXEC}"), (counter("comm"),), None),
        (attach(f"tracepoint:{EXIT}", "long", "return < 0", **{"return": "ret"}), (counter("return"),), None),
    ],
)
def test_without_hist_triggers_the_agent_adds_up(
    way: Attach, metrics: tuple[Metric, ...], line: str | None
) -> None:
    made = kernel_probe(way, metrics=metrics)
    found = [one for one in plans(made, hist=False) if isinstance(one, ProbeSpec)]
    expected = plans(replace(made, aggregate="events"), hist=False)
    notes = {"; ".join(filter(None, (NO_HIST, one.note))) for one in found}
    assert {(one.plan, one.because, one.tables) for one in found} == {("events", note, ()) for note in notes}
    if line:
        assert [one.line("g", "e") for one in found] == [line]
    else:  # recorded as with `aggregate: events`, upper halves for sums are left out
        events = [
            replace(one, because=because)
            for one, because in zip(expected, (one.because for one in found), strict=True)
            if isinstance(one, ProbeSpec)
        ]
        assert found == events


@pytest.mark.parametrize(
    ("made", "because"),
    [
        (probe(attach("kprobe:f")), "nothing but hits is asked for"),
        (probe(attach("kprobe:f"), aggregate="events"), "aggregate: events"),
        (probe(attach("kprobe:f"), stack=True), "stack: true"),
        (probe(attach("kprobe:f", filter_text="common_pid > 1")), "its filter is counted by events"),
        (probe(attach("kprobe:f"), metrics=(counter(),)), "the metric x_total takes its events"),
        (probe(attach("kretprobe:f", "int")), "its return value is read"),
        (probe(attach(f"tracepoint:{EXEC}")), "nothing but hits is asked for"),
        (probe(attach(f"tracepoint:{EXEC}"), aggregate="events"), "aggregate: events"),
    ],
)
def test_the_other_plans_have_their_reasons(made: Probe, because: str) -> None:
    first = spec(made)
    assert first.because == because
    assert first.plan == ("count" if because.startswith("nothing") else "events")
    assert first.tables == ()


def test_a_tracepoint_that_cannot_be_counted_otherwise() -> None:
    first = spec(probe(attach(f"tracepoint:{EXEC}")), hist=False)
    assert first.because == "this kernel counts a tracepoint in no other way"


def test_buckets_of_one_width_are_linear_rows() -> None:
    """Values above the last bound share a row; without that each would have one."""
    made = Metric("histogram", "x", "h", "n", (), (99.0, 199.0, 399.0))
    way = attach("kprobe:f", None, None, n="$arg1:u32")
    assert [table.trigger for table in spec(kernel_probe(way, metrics=(made,))).tables] == [
        "hist:keys=n.buckets=100:vals=n:size=512 if n > 0 && n <= 399",
        "hist:keys=common_cpu:vals=n:size=1024 if n > 399",
        "hist:keys=n:size=512 if n == 0",
    ]
