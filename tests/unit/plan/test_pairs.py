"""Plans of calls and pairs that the kernel joins: keys, fields, tables; and what it cannot have."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.aggregation import DURATIONS
from kprobe_exporter.model.hist import HistFeed
from kprobe_exporter.model.joins import DISTANCE
from kprobe_exporter.model.pairs import KernelPair, PairField
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan import JoinedSpec, Kernel, plan_probe
from kprobe_exporter.plan.joined import MEASURED
from kprobe_exporter.plan.kernel_pairs import NOT_JOINED, REFUSED
from kprobe_exporter.plan.probe import Alternative
from tests.support.planned import formats

REAL = Kernel(formats, counts_tracepoints=True, binary=True)
EXEC, EXIT, SWITCH = (
    f"tracepoint:{one}"
    for one in ("sched:sched_process_exec", "syscalls:sys_exit_openat", "sched:sched_switch")
)
CALL = "attach: 'call:f', fetch: {n: '$arg1:u16'}, returns: int"

Plan = Callable[..., tuple[Alternative, ...]]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Return a function that plans the probe ``p`` with the given keys, which the kernel adds up."""

    def run(rest: str, kernel: Kernel = REAL) -> tuple[Alternative, ...]:
        file = tmp_path / "c.yaml"
        file.write_text(f"probes: [{{name: p, aggregate: kernel, {rest}}}]")
        [probe] = load([file], DECODERS).probes
        return plan_probe(probe, "ns", DECODERS, kernel, itertools.count()).alternatives

    return run


def first(found: tuple[Alternative, ...]) -> tuple[JoinedSpec, KernelPair]:
    way = found[0]
    assert isinstance(way, JoinedSpec)
    assert way.pair is not None
    return way, way.pair


def triggers(pair: KernelPair) -> list[str]:
    return [table.trigger for table in pair.sums.tables]


def test_a_call_is_found_by_its_stack_pointer(plan: Plan) -> None:
    way, pair = first(found := plan(CALL))
    assert (way.plan, way.because, way.residual_filter) == ("kernel", "aggregate: kernel", None)
    assert (pair.begin_key, pair.each_end) == ("stack_pointer", True)
    assert pair.end_key == (f"stack_pointer-{DISTANCE}" if DISTANCE else "stack_pointer")
    halves = [one for half in way.ways for one in half]
    assert all(isinstance(one, ProbeSpec) and one.plan == "kernel" and one.tables == () for one in halves)
    assert pair.fields == ()
    [table] = pair.sums.tables
    assert table.trigger == "hist:keys=duration.log2:vals=duration:size=128"
    assert table.feeds == (HistFeed(DURATIONS, "spread", (), 0),)
    assert pair.sums.layout.layout_id == way.layout_id
    [by_agent] = found[1:]  # if the kernel refuses it
    assert isinstance(by_agent, JoinedSpec)
    assert (by_agent.plan, by_agent.pair, by_agent.because) == ("events", None, f"{MEASURED}; {REFUSED}")


@pytest.mark.parametrize("kernel", [replace(REAL, joins=False), replace(REAL, counts_tracepoints=False)])
def test_a_kernel_that_does_not_join_leaves_it_to_the_agent(plan: Plan, kernel: Kernel) -> None:
    [way] = plan(CALL, kernel)
    assert isinstance(way, JoinedSpec)
    assert (way.plan, way.pair, way.because) == ("events", None, f"{MEASURED}; {NOT_JOINED}")
    assert way.settled(()).because == f"{MEASURED}; {NOT_JOINED}"


def test_fields_of_both_events_are_carried_over(plan: Plan) -> None:
    where = "return < 0 && duration > 1ms"
    metrics = f"{{counter: all_total, labels: [comm, n]}}, {{counter: some_total, where: '{where}'}}"
    _, pair = first(plan(f"{CALL}, filter: 'tid == 7 && duration < 2s', metrics: [{metrics}]"))
    assert pair.fields == (
        PairField("comm", "char", "comm", first=True),
        PairField("field1", "u16", "n", first=True),
        PairField("field2", "s32", "return", first=False),
        PairField("field3", "s32", "common_pid", first=True),
    )
    only = "field3 == 7 && duration < 2000000000"
    assert triggers(pair)[:2] == [
        f"hist:keys=comm,field1:size=4096 if {only}",
        f"hist:keys=common_cpu:size=1024 if ({only}) && (field2 < 0 && duration > 1000000)",
    ]
    assert triggers(pair)[-1] == "hist:keys=common_cpu:size=1024"  # all that is joined, for the losses


def test_linear_buckets_of_a_duration_end_at_their_bounds(plan: Plan) -> None:
    """The kernel's own end one below, so that of the duration less one is counted."""
    buckets = "{linear: {start: 0.001, width: 0.001, count: 3}}"
    _, pair = first(plan(f"{CALL}, metrics: [{{histogram: a_seconds, value: duration, buckets: {buckets}}}]"))
    assert pair.less
    assert triggers(pair) == [
        "hist:keys=less.buckets=1000000:vals=duration:size=512 if duration <= 3000000",
        "hist:keys=common_cpu:vals=duration:size=1024 if duration > 3000000",
        "hist:keys=common_cpu:size=1024",
    ]


PAIR = "attach: {{pair: {{from: {{to: '{}', fetch: {{{}}}}}, to: {{to: '{}', fetch: {{{}}}}}, key: {}}}}}"


def test_a_pair_is_found_by_its_key(plan: Plan) -> None:
    way, pair = first(plan(PAIR.format(EXEC, "task: pid", SWITCH, "task: next_pid", "task")))
    assert (pair.begin_key, pair.end_key, pair.each_end) == ("pid", "next_pid", False)
    assert [one.event for half in way.ways for one in half if isinstance(one, ProbeSpec)] == [
        "sched_process_exec",
        "sched_switch",
    ]
    _, pair = first(plan(PAIR.format(EXEC, "", SWITCH, "", "[tid, cpu]")))
    assert (pair.begin_key, pair.end_key) == ("common_pid,common_cpu", "common_pid,common_cpu")


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (
            PAIR.format(EXEC, "a: pid", EXIT, "a: ret", "a"),
            "'a' has 32 bits at one event and 64 at the other",
        ),
        (
            "attach: 'call:f', fetch: {s: '+0($arg1):string'}, filter: 's == \"x\"'",
            "its field 's' is not a plain number, and cannot be carried over",
        ),
    ],
)
def test_what_it_cannot(plan: Plan, rest: str, reason: str) -> None:
    [way] = plan(rest)
    assert isinstance(way, Unsupported)
    assert reason in way.reason
