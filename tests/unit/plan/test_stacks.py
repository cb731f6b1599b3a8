"""How the stacks of a probe are counted: by a hist trigger where it can, by the agent of all others."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.elf import Code
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.stacks import StackTable
from kprobe_exporter.plan import Alternative, JoinedSpec, Kernel, plan_probe
from tests.support.planned import formats

REAL = Kernel(formats, counts_tracepoints=True, binary=True)
WITHOUT = replace(REAL, counts_tracepoints=False)
SWITCH = "tracepoint:sched:sched_switch"

Plan = Callable[..., Alternative]


@pytest.fixture
def first(tmp_path: Path) -> Plan:
    """Return a function that plans the first way of the probe ``p`` with the given keys."""

    def run(keys: str, kernel: Kernel = REAL) -> Alternative:
        file = tmp_path / "c.yaml"
        file.write_text(f"probes: [{{name: p, {keys}}}]")
        [probe] = load([file], DECODERS).probes
        return plan_probe(probe, "ns", DECODERS, kernel, itertools.count()).alternatives[0]

    return run


@pytest.mark.parametrize(
    ("keys", "table"),
    [
        ("attach: 'kprobe:f', stacks: {}", StackTable(None, None, 2048)),
        ("attach: 'kprobe:f', stacks: {max: 1}", StackTable(None, None, 128)),
        ("attach: 'kprobe:f', stacks: {max: 10000}", StackTable(None, None, 32768)),
        (
            "attach: 'kprobe:f', fetch: {n: '$arg1:u64'}, filter: 'n > 1 || n == 0', stacks: {weigh: n}",
            StackTable("n", "(n > 1 || n == 0) && (n >= 0)", 2048),
        ),
        (
            "attach: 'kretprobe:f', stacks: {weigh: return}, return_buckets: none",
            StackTable("return", "return >= 0 && (return < 4294963201 || return > 4294967295)", 2048),
        ),
        (
            "attach: 'kretprobe:f', returns: int, stacks: {weigh: return}",
            StackTable("return", "return >= 0", 2048),
        ),
        (
            f"attach: '{SWITCH}', fetch: {{n: prev_prio}}, stacks: {{weigh: n}}, aggregate: auto",
            StackTable("prev_prio", "prev_prio >= 0", 2048),
        ),
        (f"attach: '{SWITCH}', stacks: {{}}, aggregate: kernel", StackTable(None, None, 2048)),
    ],
)
def test_a_hist_trigger(first: Plan, keys: str, table: StackTable) -> None:
    way = first(keys)
    assert isinstance(way, ProbeSpec)
    assert way.stack_table == table
    assert not way.stack
    assert "a hist trigger counts its stacks" in way.because


def test_it_changes_no_plan(first: Plan) -> None:
    way = first("attach: 'kprobe:f', stacks: {}")
    assert isinstance(way, ProbeSpec)
    assert (way.plan, way.because) == (
        "count",
        "nothing but hits is asked for; a hist trigger counts its stacks",
    )


@pytest.mark.parametrize(
    ("keys", "kernel"),
    [
        ("attach: 'kprobe:f', fetch: {n: '$arg1:u64'}, stacks: {weigh: n}", WITHOUT),
        ("attach: 'kprobe:f', stack: true, stacks: {}, fetch: {n: '$arg1:u64'}", REAL),
        (f"attach: '{SWITCH}', fetch: {{n: prev_prio}}, stacks: {{weigh: n}}", WITHOUT),
    ],
)
def test_each_stack_is_recorded(first: Plan, keys: str, kernel: Kernel) -> None:
    way = first(keys, kernel)
    assert isinstance(way, ProbeSpec)
    assert (way.plan, way.stack, way.layout.stack, way.stack_table) == ("events", True, True, None)
    assert way.layout.place("n") is not None
    assert way.because.startswith("the agent counts its stacks")


@pytest.mark.parametrize("kernel", [REAL, WITHOUT])
def test_a_pair_records_the_stack_of_its_first_event(first: Plan, kernel: Kernel) -> None:
    pair = (
        f"from: {{to: '{SWITCH}', fetch: {{id: prev_pid}}}}, to: {{to: '{SWITCH}', fetch: {{id: next_pid}}}}"
    )
    way = first(f"attach: {{pair: {{{pair}, key: id}}}}, stacks: {{weigh: duration}}", kernel)
    assert isinstance(way, JoinedSpec)
    begins, ends = way.ways
    specs = [spec for spec in (*begins, *ends) if isinstance(spec, ProbeSpec)]
    assert [spec.stack for spec in specs] == [spec.role == "begin" for spec in specs]
    assert all(spec.stack_table is None for spec in specs)


@pytest.mark.parametrize("keys", ["attach: 'kprobe:f'", f"attach: '{SWITCH}'"])
def test_with_a_programs_stack_each_is_recorded(first: Plan, keys: str) -> None:
    way = first(f"{keys}, stacks: {{user: true}}")
    assert isinstance(way, ProbeSpec)
    assert (way.plan, way.stack, way.layout.user_stack, way.stack_table) == ("events", True, True, None)
    assert way.because.startswith("the agent counts its stacks")


@pytest.mark.parametrize("attach", ["'kprobe:f'", "'uprobe:/bin/sh:0x1000'", "'call:f'"])
def test_a_kernel_that_cannot_follow_programs(first: Plan, attach: str) -> None:
    way = first(f"attach: {attach}, stacks: {{user: true}}", replace(REAL, no_user_stacks="no such thing"))
    assert isinstance(way, Unsupported)
    assert way.reason == "no such thing"


def test_a_place_in_a_program_has_the_programs_stack_alone(first: Plan) -> None:
    kernel = replace(REAL, locate=lambda target: Code(0x1000, "EM_X86_64"))
    way = first("attach: 'uprobe:/bin/sh:0x1000', stacks: {user: true}", kernel)
    assert isinstance(way, ProbeSpec)
    assert (way.plan, way.stack, way.layout.stack, way.layout.user_stack) == ("events", False, False, True)
    assert way.stack_table is None
    call = first("attach: 'ucall:/bin/sh:f', stacks: {user: true, weigh: duration}", kernel)
    assert isinstance(call, JoinedSpec)
    specs = [spec for half in call.ways for spec in half if isinstance(spec, ProbeSpec)]
    assert [spec.layout.user_stack for spec in specs] == [spec.role == "begin" for spec in specs]
    assert not any(spec.stack for spec in specs)
