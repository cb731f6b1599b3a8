"""What clients have not taken yet has a bound."""

import asyncio
from contextlib import ExitStack

import pytest

from kprobe_exporter.web.clients import Client
from kprobe_exporter.web.messages import Response
from kprobe_exporter.web.rendering import Unsent


class Transport(asyncio.Transport):
    """A transport that can be aborted."""

    def abort(self) -> None:
        pass


@pytest.fixture
def clients() -> list[Client]:
    return [Client(Transport(), 0) for _ in range(6)]


def test_the_slowest_clients_are_dropped(clients: list[Client]) -> None:
    """Three of one rendering count once; above the limit all of them go, as theirs is the oldest."""
    unsent = Unsent(limit=25)
    oldest, second, latest = (Response(bytes(10), {}) for _ in range(3))
    with ExitStack() as stack:
        for client in clients[:3]:
            stack.enter_context(unsent.held(oldest, client))
        stack.enter_context(unsent.held(second, clients[3]))
        assert not any(client.dropped for client in clients)
        stack.enter_context(unsent.held(latest, clients[4]))
        assert [client.dropped for client in clients] == [True] * 3 + [False] * 3
    with unsent.held(latest, clients[5]):
        assert not clients[5].dropped


def test_what_was_taken_counts_no_longer(clients: list[Client]) -> None:
    unsent = Unsent(limit=25)
    for client in clients:
        with unsent.held(Response(bytes(20), {}), client):
            pass
    assert not any(client.dropped for client in clients)


def test_one_large_rendering_may_stay(clients: list[Client]) -> None:
    unsent = Unsent(limit=25)
    with unsent.held(Response(bytes(100), {}), clients[0]):
        assert not clients[0].dropped
        with unsent.held(Response(bytes(100), {}), clients[1]):
            assert [client.dropped for client in clients[:2]] == [True, False]
