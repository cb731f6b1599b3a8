"""Bursts that a small ring buffer cannot hold: hits are events, what a filter turned away, or told losses."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.kernel.conftest import StartAgent
from tests.kernel.differential.expected import EVENTS, HITS, LOST
from tests.kernel.differential.load import Load, Operation
from tests.kernel.differential.probes import (
    RESIDENT,
    Comparison,
    Condition,
    Fetch,
    Metric,
    Probe,
    configuration,
)
from tests.kernel.differential.run import Runner
from tests.support.agent_process import Metrics
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("kprobe_events")

BURSTS = 6
"""Bursts of one test; each takes a second or two under emulation."""


def probes(random: Random, number: int) -> list[Probe]:
    """Draw probes that all see the same calls, with records of different sizes."""
    found = []
    for index in range(random.randint(1, 3)):
        name = f"burst{number}_{index}"
        fetch = (Fetch("value", "s64"), *([Fetch("text", "string")] if random.random() < 0.5 else []))
        bits = random.choice((0, 1, 3, 64))
        filtered = Condition((Comparison("value", "&", bits),)) if bits else None
        metrics = (Metric("counter", f"{name}_total"),)
        found.append(Probe(name, "uprobe", "take_value", fetch, filter=filtered, metrics=metrics))
    return found


def passing(probe: Probe, calls: int) -> int:
    """How many of the values from 0 up to the number of calls its filter lets through."""
    if probe.filter is None:
        return calls
    bits = probe.filter.comparisons[0].constant
    assert isinstance(bits, int)
    return sum(value & bits != 0 for value in range(calls))


@pytest.fixture
def runner(start_agent: StartAgent, tmp_path: Path) -> Runner:
    load = Load.build(tmp_path)
    agent = start_agent(configuration((), str(load.program), buffer="64KiB"))
    return Runner(agent, tmp_path / "config0.yaml", load, buffer="64KiB")


def test_bursts(runner: Runner, random: Random) -> None:
    """The kernel counts every call; what is no event of any probe is told as an overrun."""
    overruns = 0.0
    for number in range(BURSTS):
        present = probes(random, number)
        runner.reload(present)
        threads, calls = random.randint(1, 3), random.choice((300, 3000, 12_000))
        text = b"x" * random.choice((1, 100, 700))
        before = runner.scrape()
        runner.load.run([Operation(thread, "burst", calls, text=text) for thread in range(threads)])
        wrong = settled(runner, before, (RESIDENT, *present), threads, calls)
        assert wrong == [], configuration(present, "load")
        overruns += since(runner.scrape(), before, LOST, reason="overrun")
    assert runner.falls == []
    assert overruns > 0


def settled(runner: Runner, before: Metrics, present: Sequence[Probe], threads: int, calls: int) -> list[str]:
    """What is wrong after the last events and counts have arrived."""
    wrong: list[str] = []

    def holds() -> bool:
        wrong[:] = differences(runner.scrape(), before, present, threads * calls, calls)
        return not wrong

    with suppress(AssertionError):
        eventually(holds, 5)
    return wrong


def since(metrics: Metrics, before: Metrics, name: str, **labels: str) -> float:
    """By how much a counter has risen."""
    return metrics.value(name, **labels) - before.value(name, **labels)


def differences(
    metrics: Metrics, before: Metrics, present: Sequence[Probe], number: int, calls: int
) -> list[str]:
    """What is wrong after so many calls, of which each thread made ``calls``."""
    wrong, delivered, wanted = [], 0.0, 0
    for probe in present:
        hits = since(metrics, before, HITS, probe=probe.name)
        events = since(metrics, before, EVENTS, probe=probe.name)
        counted = since(metrics, before, f"kprobe_{probe.metrics[0].name}")
        most = number // calls * passing(probe, calls)
        if hits != number or counted != events or events > most:
            wrong.append(
                f"{probe.name}: {hits} hits of {number}, {events} events of {most}, {counted} counted"
            )
        delivered += events
        wanted += most
    overrun = since(metrics, before, LOST, reason="overrun")
    if delivered + overrun != wanted:
        wrong.append(f"{delivered} events and {overrun} told losses of {wanted} events")
    others = {one["reason"] for one in metrics.labels(LOST)} - {"overrun"}
    return wrong + [
        f"lost: {reason}" for reason in sorted(others) if since(metrics, before, LOST, reason=reason)
    ]
