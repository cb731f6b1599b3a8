"""What clients have not taken yet has a bound, and a body is written in pieces."""

import asyncio
from contextlib import ExitStack

import pytest
from starlette.types import Message

from kprobe_exporter.web.connection import CHUNK, CLIENT, Client
from kprobe_exporter.web.rendering import Rendering, SharedResponse, Unsent


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
    oldest, second, latest = (Rendering(bytes(10), {}) for _ in range(3))
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
        with unsent.held(Rendering(bytes(20), {}), client):
            pass
    assert not any(client.dropped for client in clients)


def test_one_large_rendering_may_stay(clients: list[Client]) -> None:
    unsent = Unsent(limit=25)
    with unsent.held(Rendering(bytes(100), {}), clients[0]):
        assert not clients[0].dropped
        with unsent.held(Rendering(bytes(100), {}), clients[1]):
            assert [client.dropped for client in clients[:2]] == [True, False]


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_body_goes_out_in_pieces(clients: list[Client], size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError

    response = SharedResponse(Rendering(body, {"Content-Type": "text/plain"}), Unsent())
    asyncio.run(response({"type": "http", "state": {CLIENT: clients[0]}}, receive, send))
    start, *pieces, last = messages
    assert dict(start["headers"])[b"content-length"] == str(size).encode()
    assert b"".join(piece["body"] for piece in pieces) == body
    assert all(piece["more_body"] and len(piece["body"]) <= CHUNK for piece in pieces)
    assert last == {"type": "http.response.body"}
