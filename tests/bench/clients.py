"""What a scrape takes beside clients that are idle, slow or guess passwords."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.progress import say
from tests.bench.table import Table, reached
from tests.support.scraped import (
    GUESSING,
    IDLE,
    SAMPLES,
    SLOW,
    Scraped,
    guessing_clients,
    idle_and_slow_clients,
    protected,
)

TITLE = "A scrape beside other clients"
WARM_UP = 10
SCRAPES = 200
GOAL = 0.1
"""Seconds, for the 99th percentile."""


def table() -> Table:
    rows, worst = [], 0.0
    for name, tls in (("HTTP", False), ("TLS", True)):
        with (
            tempfile.TemporaryDirectory() as directory,
            protected(Path(directory, "agent"), tls=tls) as agent,
        ):
            say(f"{name}, alone")
            rows.append(_row(f"{name}, no others", _times(agent, lambda number: None)))
            say(f"{name}, {IDLE} idle and {SLOW} slow clients")
            with idle_and_slow_clients(agent) as dribble:
                slow = _times(agent, dribble)
            rows.append(_row(f"{name}, {IDLE} idle and {SLOW} slow clients", slow))
            say(f"{name}, {GUESSING} clients that guess passwords")
            with guessing_clients(agent):
                guessing = _times(agent, lambda number: None)
            rows.append(_row(f"{name}, {GUESSING} clients that guess passwords", guessing))
            worst = max(worst, _percentile(slow), _percentile(guessing))
    return Table(
        TITLE,
        f"{SCRAPES} scrapes of {SAMPLES:,} samples, with a password, each on a connection of its own; the"
        " clients and what scrapes run on the same machine. Half of the idle clients send nothing, the"
        " others finish their handshake. A slow one sends a byte between two scrapes, or reads nothing of a"
        " large"
        " answer. One that guesses asks again as soon as it is answered.",
        ("beside", "median", "99th percentile", "longest"),
        tuple(rows),
        (
            reached(
                f"the 99th percentile beside them is less than {1000 * GOAL:.0f} ms",
                f"{1000 * worst:.0f} ms",
                ok=worst < GOAL,
            ),
        ),
    )


def _times(agent: Scraped, between: Callable[[int], None]) -> list[float]:
    """The scrapes' seconds, after some that are not measured."""
    times = []
    for number in range(WARM_UP + SCRAPES):
        between(number)
        began = time.perf_counter()
        status, body = agent.ask()
        times.append(time.perf_counter() - began)
        assert (status, body.count(b"{tid=")) == (200, SAMPLES)
    return times[WARM_UP:]


def _percentile(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def _row(name: str, times: list[float]) -> tuple[str, ...]:
    figures = (statistics.median(times), _percentile(times), max(times))
    return (name, *(f"{1000 * seconds:.1f} ms" for seconds in figures))
