"""Beside idle, slow and guessing clients an agent answers every scrape, about as fast as without them.

A benchmark measures the speed on a real machine (tests/bench/clients.py).
"""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles

import pytest

from tests.support.scraped import (
    SAMPLES,
    Scraped,
    guessing_clients,
    hostile_clients,
    idle_and_slow_clients,
    protected,
)
from tests.support.web_target import flood_of_handshakes

WARM_UP = 10
SCRAPES = 100
MOST_TIMES = 5
"""The factor by which half and nine tenths of the scrapes may be slower than without such clients. It was
0.6 to 1.2 on two busy CPUs. A scrape that waits for a silent client would take the 10 s after which such a
client is cut off, a factor of hundreds."""


@pytest.fixture(params=["plain", "TLS"])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Scraped, Scraped]]:
    """Two equal agents: one that has the clients, and one that only the test scrapes."""
    tls = request.param == "TLS"
    with protected(tmp_path / "beside", tls=tls) as agent, protected(tmp_path / "alone", tls=tls) as alone:
        yield agent, alone


def compare(agent: Scraped, alone: Scraped, between: Callable[[int], None]) -> None:
    """Scrape both in turns, so that other load on the machine delays both."""
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


LARGE = 40_000
"""Samples of an exposition of 2 MB."""
BESIDE_LARGE = 10
MOST_MEMORY = 30
"""MB that such clients may add. With 1,000 samples an agent has about 50 MB (docs/benchmarks.md), and the
DaemonSet's agent may have 192."""


@pytest.mark.parametrize("requests", [1, 50], ids=["drip", "pipeline"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_as_many_hostile_clients_as_connections(tmp_path: Path, tls: bool, requests: int) -> None:
    """Every scrape is answered, and memory stays bounded."""
    with protected(tmp_path / "agent", tls=tls, samples=LARGE) as agent:
        alone = most_memory(agent)
        with hostile_clients(agent, requests):
            for _ in range(BESIDE_LARGE):
                status, body = agent.ask()
                assert (status, body.count(b"{tid=")) == (200, LARGE)
        beside = most_memory(agent)
    print(f"{len(body) / 1e6:.1f} MB a scrape; {beside:.0f} MB resident, {alone:.0f} MB without such clients")
    assert beside - alone < MOST_MEMORY


FLOOD_ROUNDS = 20


def test_flood_of_unfinished_handshakes(tmp_path: Path) -> None:
    """Each client sends 10 bytes of a ClientHello and connects again: 10,000 handshakes in some seconds."""
    with protected(tmp_path / "agent", tls=True) as agent:
        alone = most_memory(agent)
        flood_of_handshakes(agent.port, agent.first_words()[:10], FLOOD_ROUNDS)
        beside = most_memory(agent)
        assert agent.ask()[0] == 200
    print(f"{beside:.0f} MB resident, {alone:.0f} MB without the flood")
    assert beside - alone < MOST_MEMORY


def most_memory(agent: Scraped) -> float:
    """Return the most memory in MB that the agent has had resident."""
    found = re.search(
        r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{agent.agent.pid}/status").read_text(), re.MULTILINE
    )
    assert found
    return int(found[1]) / 1000
