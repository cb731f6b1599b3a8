"""Under long load, reloads and outside interference, an agent neither grows nor loses a count."""

import json
import os
import platform
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults import soak
from tests.faults.soak import BURSTS, Eye, Load
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.leftovers import definitions
from tests.support.libc import own_libc
from tests.support.patience import eventually

pytestmark = [pytest.mark.needs("kprobe_events"), pytest.mark.needs("uprobe_events")]

CYCLE = 5.0
RELOAD_EVERY = 2
DELETE_EVERY = 6
"""In cycles of 5 s: a reload each 10 s, and a probe deleted by hand each 30 s."""

WARM_UP = 2
"""Cycles before measuring starts."""

HITS, EVENTS, LOST = "kprobe_hits_total", "kprobe_exporter_events_total", "kprobe_exporter_events_lost_total"
SCRAPERS = 8
"""Concurrent scrapes: more than the agent has threads for."""

RELOADED = "kprobe_exporter_config_last_reload_success_timestamp_seconds"
TOLD = ("overrun", "commit_overrun", "dropped", "unparsed")


@dataclass
class Soak:
    """An agent, its load, and the counts of what was done to it."""

    agent: AgentProcess
    config: Path
    tracefs: Path
    load: Load
    reloads: int = 0
    deleted: int = 0
    rounds: int = 0
    quiet: int = 0

    def applied(self) -> float:
        """The time of the last reload. The log does not have it, since it leaves out repeated messages."""
        return _value(self.agent.get(f"/metrics?name[]={RELOADED}"), RELOADED)

    def cycle(self, number: int) -> None:
        """Make some quiet calls and a burst, the largest while the agent is stopped.

        Every second cycle reloads during one of the two.
        """
        reload_at = {0: "quiet", RELOAD_EVERY: "burst"}.get(number % (2 * RELOAD_EVERY))
        before = self.applied()
        for work in ("quiet", "burst"):
            if work == "quiet":
                self.load.quiet()
                self.quiet += soak.QUIET_ROUNDS
            else:
                rounds = BURSTS[number % len(BURSTS)]
                if rounds == max(BURSTS):  # a reader that runs might keep up with the load
                    self.agent.signal(signal.SIGSTOP)
                self.load.burst(rounds)
            if work == reload_at:
                self.reloads += 1
                self.config.write_text(soak.text(str(own_libc()), other=bool(self.reloads % 2)))
                self.agent.signal(signal.SIGHUP)
            self.rounds = self.load.done()
            self.agent.signal(signal.SIGCONT)
            self.applied()  # a scrape reads the quiet calls' events before a burst may overrun them
        if reload_at is not None:
            eventually(lambda: self.applied() > before, 60)
        if number % DELETE_EVERY == DELETE_EVERY - 1:
            eventually(self.counted, 60)
            self.delete(soak.VICTIMS[self.deleted % len(soak.VICTIMS)])

    def counted(self) -> bool:
        """Whether all hits were read; deleting an event discards the ring buffer's events and its counts."""
        text = self.agent.get(f"/metrics?name[]={HITS}")
        names = soak.counted_by_kernel(self.tracefs)
        return {_value(text, f'{HITS}{{probe="{name}"}}') for name in names} == {self.rounds}

    def delete(self, probe: str) -> None:
        """Disable a probe and delete its definition, as an administrator does who takes it for a leftover."""
        for event in (self.tracefs / "instances/kprobe_exporter/events/kprobe_exporter").glob(f"{probe}*"):
            with suppress(OSError):  # the agent may have re-enabled it in between
                if (event / "enable").read_text().startswith("1"):
                    _write(event / "enable", "0")
                    _write(self.tracefs / "kprobe_events", f"-:kprobe_exporter/{event.name}")
                    self.deleted += 1
                    return

    def missing(self, metrics: Metrics, names: tuple[str, ...], calls: int) -> dict[str, float]:
        """The calls that have no event, by probe, of the probes that have any."""
        events = {name: metrics.value(EVENTS, probe=name) for name in names}
        return {name: calls - count for name, count in events.items() if count != calls}


def _value(text: str, name: str) -> float:
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def _write(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@pytest.fixture
def soaked(start_agent: StartAgent, tracefs: Path, tmp_path: Path) -> Iterator[Soak]:
    with closing(Load()) as load:
        agent = start_agent(soak.text(str(own_libc()), other=False))
        yield Soak(agent, tmp_path / "config0.yaml", tracefs, load)


def test_it_neither_grows_nor_loses_a_count(soaked: Soak, request: pytest.FixtureRequest) -> None:
    agent, span = soaked.agent, 60 * request.config.getoption("--minutes")
    soaked.cycle(0)
    soaked.cycle(RELOAD_EVERY)  # by now, both configurations were active
    begun = settled(agent)
    ours = number_of_definitions(soaked.tracefs)
    for number in range(WARM_UP):
        soaked.cycle(number)
    eye, number = Eye(agent), 0
    with eye.open(lambda: number_of_definitions(soaked.tracefs)):
        while time.monotonic() - eye.begun < span:
            number += 1
            soaked.cycle(number)
            time.sleep(max(0, number * CYCLE - (time.monotonic() - eye.begun)))
    soaked.cycle(0)  # reinstalls a deleted probe
    with suppress(AssertionError):  # the log has a thread while it has lines to summarise
        eventually(lambda: settled(agent) == begun, 120)
    ended = settled(agent)
    metrics = balanced(soaked)
    missing = soaked.missing(metrics, soak.RECORDED, soaked.rounds)
    exact = soak.counted_by_kernel(soaked.tracefs)
    lost = {reason: metrics.value(LOST, reason=reason) for reason in (*TOLD, "unpaired", "disabled", "wiped")}
    before, after = eye.mean_resident(span / 6, span / 2), eye.mean_resident(2 * span / 3, span)
    figures = {
        "kernel": platform.release(),
        "minutes": span / 60,
        "probes": len(soak.probes("", other=False)),
        "reloads": soaked.reloads,
        "scrapes": len(eye.times),
        "deleted": soaked.deleted,
        "hits": metrics.total(HITS),
        "events": metrics.total(EVENTS),
        "lost": lost,
        "missing": sum(missing.values()),
        "resident_before": before,
        "resident_after": after,
        "descriptors": len(begun[0]),
        "threads": len(begun[1]),
        "definitions": ours,
        "most_definitions": eye.most_definitions,
        "slowest_scrape": max(eye.times),
        "resident": eye.resident,
    }
    print(json.dumps(figures | {"resident": eye.resident[:: max(1, len(eye.resident) // 60)]}))
    soak.dump(request.config.getoption("--figures"), figures)

    assert ended == begun
    assert eye.fell == []
    assert soaked.missing(metrics, soak.JOINED, soaked.quiet) == {}
    assert sum(missing.values()) == sum(lost[reason] for reason in TOLD)
    assert lost["overrun"] > 0  # otherwise the load is too small
    for name in exact:
        assert metrics.value(HITS, probe=name) == soaked.rounds, name
    for name in soak.TABLES:
        _, _, call = name.partition("_")
        counted = soaked.rounds if name in exact else metrics.value(EVENTS, probe=f"t_{call}")
        assert metrics.value(f"kprobe_{name}_total") == counted, name
    assert metrics.value(HITS, probe="call_getpriority") == soaked.quiet
    assert metrics.total("kprobe_exporter_unexplained_events") == 0
    assert down(metrics) == []
    assert len(metrics.labels("kprobe_up")) == 50
    assert eye.most_definitions <= ours + len(soak.VICTIMS)
    assert after <= before * (1 + growth(span)), f"{before:.0f} bytes grew to {after:.0f}"
    assert agent.end() == 0
    assert "Traceback" not in agent.output()
    assert " ERROR " not in agent.output()


def growth(span: float) -> float:
    """The part by which the memory may grow, between means over 1/3 of so many seconds.

    A short soak has few samples, and a loaded machine delays bursts from one third to the other.
    """
    return 0.02 if span >= 1800 else 0.1


def settled(agent: AgentProcess) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Descriptors and threads when no connection is open and all serving threads have started."""
    with ThreadPoolExecutor(SCRAPERS) as pool:
        list(pool.map(lambda _: agent.get(), range(2 * SCRAPERS)))
    found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def same() -> bool:
        found.append((soak.descriptors(agent.pid), soak.threads(agent.pid)))
        return len(found) > 50 and len(set(found[-50:])) == 1

    eventually(same)
    return found[-1]


def balanced(soaked: Soak) -> Metrics:
    """A scrape in which all hits are accounted for, or the last scrape if none comes to that."""
    found: list[Metrics] = []

    def look() -> bool:
        metrics = soaked.agent.scrape()
        found.append(metrics)
        told = sum(metrics.value(LOST, reason=reason) for reason in TOLD)
        hits = {metrics.value(HITS, probe=name) for name in soak.counted_by_kernel(soaked.tracefs)}
        missing = soaked.missing(metrics, soak.RECORDED, soaked.rounds)
        return hits == {soaked.rounds} and sum(missing.values()) == told

    with suppress(AssertionError):
        eventually(look)
    return found[-1]


def down(metrics: Metrics) -> list[str]:
    return [
        labels["probe"] for labels in metrics.labels("kprobe_up") if metrics.value("kprobe_up", **labels) != 1
    ]


def number_of_definitions(tracefs: Path) -> int:
    return definitions(tracefs).count("kprobe_exporter/")
