"""What the time of threads costs the agent for a million switches, and each switch in the kernel.

Two processes on one CPU hand a byte to and fro, so that each byte is a switch.
"""

import os
import socket
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.bench.checks import Missed
from tests.bench.running_agent import RunningAgent, running_agent
from tests.bench.table import Table
from tests.support.forked_child import started

TITLE = "The time of threads"
SECONDS = 5.0
PAUSES = (200e-6, 20e-6, 0.0)
"""Seconds between two bytes: how many switches there are a second."""
CONFIG = """
global: {tracefs_instance: kp_bench_time, buffer_size: 4MiB, buffer_total: 256MiB, limit: none}
time: {limit: none}
"""
TOTAL, UNACCOUNTED = "kprobe_time_seconds_total", "kprobe_time_unaccounted_seconds_total"
HITS, LOST = "kprobe_hits_total", "kprobe_exporter_events_lost_total"


class Cost(NamedTuple):
    """What the agent did meanwhile. ``unaccounted`` is the share of all threads' time."""

    switches: int
    processor: float
    lost: float
    unaccounted: float


def table() -> Table:
    alone = [_switches(pause) for pause in PAUSES]
    rows = []
    with tempfile.TemporaryDirectory() as made, running_agent(Path(made), CONFIG) as agent:
        time.sleep(2)
        rest = _cost(agent, None)
        for pause, before in zip(PAUSES, alone, strict=True):
            found = _cost(agent, pause)
            rows.append(
                (
                    f"{found.switches / SECONDS:,.0f}",
                    f"{(found.processor - rest.processor) / found.switches * 1e6:.2f}",
                    "" if pause else f"{SECONDS * 1e6 * (1 / found.switches - 1 / before):+.2f}",
                    f"{found.lost:,.0f}",
                    f"{100 * found.unaccounted:.2f}",
                )
            )
    return Table(
        TITLE,
        f"An agent with `time: {{}}`, for {SECONDS:g} s at each rate. Two processes on one CPU hand a byte to"
        " and fro: each is a switch and a wake-up. The processor time is the whole agent's, less its time"
        f" without this load. Without it {100 * rest.unaccounted:.2f} % of the time was unaccounted.",
        ("switches a second", "processor s a million", "µs a switch more", "events lost", "% unaccounted"),
        tuple(rows),
    )


def _cost(agent: RunningAgent, pause: float | None) -> Cost:
    """Measure the agent beside the load, or at rest. Raises Missed if the events did not come."""
    time.sleep(1.5)  # what came before is added up once a second
    before, begun = agent.scrape(), agent.processor()
    switches = 0 if pause is None else _switches(pause)
    if pause is None:
        time.sleep(SECONDS)
    time.sleep(1.5)
    processor, after = agent.processor() - begun, agent.scrape()

    def grown(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    hits, lost = grown(HITS, probe="time"), grown(LOST)
    if hits < 2 * switches:
        raise Missed(f"{switches:,} switches are {hits:,.0f} events")
    return Cost(switches, processor, lost, grown(UNACCOUNTED) / grown(TOTAL))


def _switches(pause: float) -> int:
    """Hand a byte to and fro on one CPU; return how often that was."""
    here, there = socket.socketpair()
    with here, there:
        other = started(lambda: _answer(here, there))
        there.close()
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {0})
        number, ends = 0, time.monotonic() + SECONDS
        while (now := time.monotonic()) < ends:
            here.send(b"x")
            here.recv(1)
            number += 2
            while pause and time.monotonic() < now + pause:
                pass
        os.sched_setaffinity(0, before)
    os.waitpid(other, 0)
    return number


def _answer(here: socket.socket, there: socket.socket) -> None:
    here.close()
    os.sched_setaffinity(0, {0})
    while there.recv(1):
        there.send(b"x")
