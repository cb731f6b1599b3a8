"""Beside idle, slow and guessing clients an agent answers every scrape, about as fast as one without them.

How fast that is on a real machine is a row of the benchmarks (tests/bench/clients.py).
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles

import pytest

from tests.support.scraped import SAMPLES, Scraped, guessing_clients, idle_and_slow_clients, protected

WARM_UP = 10
SCRAPES = 100
MOST_TIMES = 5
"""So many times as long as beside no such clients may a scrape take, for half and for nine tenths of them. It
was 0.6 to 1.2 times as long on two busy CPUs. One that waited for a client that sends nothing would take the
10 s after which such a client is cut off, which is hundreds of times as long."""


@pytest.fixture(params=["plain", "TLS"])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Scraped, Scraped]]:
    """Two that are the same: one for the clients, and one that only the test scrapes."""
    tls = request.param == "TLS"
    with protected(tmp_path / "beside", tls=tls) as agent, protected(tmp_path / "alone", tls=tls) as alone:
        yield agent, alone


def compare(agent: Scraped, alone: Scraped, between: Callable[[int], None]) -> None:
    """Scrape both in turns, so that whatever else the machine does holds up both."""
    times: dict[Scraped, list[float]] = {agent: [], alone: []}
    for number in range(WARM_UP + SCRAPES):
        between(number)
        for one, seconds in times.items():
            start = time.perf_counter()
            status, body = one.ask()
            seconds.append(time.perf_counter() - start)
            assert (status, body.count(b"{tid=")) == (200, SAMPLES)
    deciles = {one: quantiles(seconds[WARM_UP:], n=10) for one, seconds in times.items()}
    for name, decile in (("half", 4), ("nine tenths", 8)):
        beside, usual = deciles[agent][decile], deciles[alone][decile]
        print(f"{name} within {1000 * beside:.1f} ms, alone within {1000 * usual:.1f} ms")
        assert beside < MOST_TIMES * usual


def test_idle_and_slow_clients(agents: tuple[Scraped, Scraped]) -> None:
    agent, alone = agents
    with idle_and_slow_clients(agent) as dribble:
        compare(agent, alone, dribble)


def test_clients_that_guess_passwords(agents: tuple[Scraped, Scraped]) -> None:
    agent, alone = agents
    with guessing_clients(agent) as statuses:
        compare(agent, alone, lambda number: None)
    assert {401} <= set(statuses) <= {401, 503}
