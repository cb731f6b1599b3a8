"""overhead: the estimate is the number of firings times a constant for the events of one hit."""

import os
from dataclasses import replace

import pytest

from kprobe_exporter.agent import overhead as costs
from kprobe_exporter.agent.overhead import Machine, Overhead, cost
from kprobe_exporter.model.hist import HistTable
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.model.stacks import StackTable


def spec(file: str | None, verb: str = "", body: str = "f", **more: object) -> ProbeSpec:
    return ProbeSpec("p", "", "", "f", file, verb, body, None, Layout(0, "p", "p", "entry", "f"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        ([spec("kprobe_events", "p", plan="count")], costs.COUNTED),
        ([spec("kprobe_events", "p")], costs.KPROBE),
        ([spec("kprobe_events", "r1024")], costs.KRETPROBE),
        ([spec("dynamic_events", "f")], costs.KPROBE),
        ([spec("dynamic_events", "f64", "f%return")], costs.FEXIT),
        ([spec("dynamic_events", "e")], costs.TRACEPOINT + costs.KPROBE),
        ([spec("uprobe_events", "p", plan="count")], costs.UPROBE),
        ([spec("uprobe_events", "r")], costs.URETPROBE),
        ([spec(None)], costs.TRACEPOINT),
        ([spec(None, stack=True)], costs.TRACEPOINT + costs.STACK),
        (
            [replace(spec("uprobe_events", "p"), layout=Layout(0, "p", "p", "entry", "f", user_stack=True))],
            costs.UPROBE + costs.USER_STACK,
        ),
        (
            [spec("kprobe_events", "p", plan="count", stack_table=StackTable(None, None, 128))],
            costs.COUNTED + costs.STACK,
        ),
        (
            [spec("kprobe_events", "p", role="begin"), spec("kprobe_events", "r1024", role="end")],
            costs.KPROBE + costs.KRETPROBE,
        ),
        ([spec(None, role="begin"), spec(None, role="begin"), spec(None, role="end")], 2 * costs.TRACEPOINT),
    ],
)
def test_a_hit(parts: list[ProbeSpec], seconds: float) -> None:
    assert cost(parts) == pytest.approx(seconds)


def test_hist_triggers_cost_too() -> None:
    table = HistTable((), None, None, 64, ())
    parts = [spec("kprobe_events", "r1024", plan="kernel", tables=(table, table))]
    assert cost(parts) == costs.KRETPROBE + 2 * costs.TRIGGER


@pytest.mark.parametrize(
    ("marker", "slowness"),
    [
        (None, 1.0),
        (costs.MARKER, 1.0),
        (3 * costs.MARKER, 3.0),
        (100 * costs.MARKER, costs.SLOWEST),
        (0.0, costs.FASTEST),
        (-1e-9, costs.FASTEST),
    ],
)
def test_how_slow_a_machine_is(marker: float | None, slowness: float) -> None:
    machine = Machine.measured(marker)
    assert machine.slowness == pytest.approx(slowness)
    assert machine.cpus == os.cpu_count()


def seconds(overhead: Overhead, *probes: str) -> dict[str, float]:
    return {name: float(str(value)) for (name,), value in overhead.family(probes).samples.items()}


def test_it_never_goes_down_and_forgets_what_is_gone() -> None:
    overhead = Overhead()
    overhead.update({"a": 10, "b": 1}, {"a": 2.0, "b": 1.0})
    assert seconds(overhead, "a", "b") == {"a": 20.0, "b": 1.0}
    overhead.update({"a": 15}, {"a": 1.0, "b": 1.0})
    assert seconds(overhead, "a", "b") == {"a": 25.0, "b": 1.0}
    overhead.update({"b": 3}, {"b": 1.0})
    assert seconds(overhead, "a", "b") == {"a": 0.0, "b": 3.0}
    overhead.update({"a": 2, "b": 3}, {"a": 1.0, "b": 1.0})
    assert seconds(overhead, "a", "b") == {"a": 2.0, "b": 3.0}


def test_one_that_was_removed_and_came_again_between_two_looks_adds_up() -> None:
    overhead = Overhead()
    overhead.update({"a": 10}, {"a": 2.0})
    overhead.update({"a": 3}, {"a": 2.0})
    assert seconds(overhead, "a") == {"a": 26.0}


def test_the_current_probes_only() -> None:
    """A probe that a reload removed has no estimate from then on, and one that it added begins with 0."""
    overhead = Overhead()
    overhead.update({"a": 10}, {"a": 2.0})
    assert seconds(overhead, "b") == {"b": 0.0}
