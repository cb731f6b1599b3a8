"""One connection over a transport in memory: what it writes, when it waits, and when it closes."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPResponse
from io import BytesIO
from types import SimpleNamespace
from typing import cast

import h11
import pytest

from kprobe_exporter.web.clients import Client, Clients
from kprobe_exporter.web.connection import CHUNK, Connection
from kprobe_exporter.web.messages import HttpError, Request, Response, line

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Transport(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True

    def write(self, data: object) -> None:
        self.written.append(cast("bytes", data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == CHUNK

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False


def parsed(data: bytes, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    """Return a response as http.client reads it."""
    sock = cast("socket.socket", SimpleNamespace(makefile=lambda _: BytesIO(data)))
    response = HTTPResponse(sock, method=method)
    response.begin()
    return response, response.read()


class Talk:
    """A connection to an application that always gives the same answer."""

    def __init__(self, response: Response) -> None:
        self.response = response
        self.requests: list[Request] = []
        self.clients = Clients()
        self.transport = Transport()
        self.complaints: list[str] = []
        self.connection = Connection(
            self.clients, self._app, lambda message, error: self.complaints.append(message)
        )
        self.connection.connection_made(self.transport)

    async def _app(self, request: Request) -> Response:
        self.requests.append(request)
        return self.response

    async def say(self, data: bytes) -> bytes:
        """Send bytes, and return what is written until nothing is left to do but to wait."""
        del self.transport.written[:]
        self.connection.data_received(data)
        return await self.rest()

    async def rest(self) -> bytes:
        for _ in range(3):
            await asyncio.sleep(0)
        return b"".join(self.transport.written)


def run(response: Response, scene: Callable[[Talk], Awaitable[None]]) -> None:
    async def play() -> None:
        await scene(Talk(response))

    asyncio.run(play())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_body_in_pieces(size: int, method: str) -> None:
    body = bytes(number % 251 for number in range(size))

    async def scene(talk: Talk) -> None:
        response, read = parsed(await talk.say(GET.replace(b"GET", method.encode())), method)
        assert read == (body if method == "GET" else b"")
        assert response.headers["Content-Length"] == str(size)
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert parsedate_to_datetime(response.headers["Date"]).tzinfo
        assert max(map(len, talk.transport.written[1:])) <= CHUNK
        assert not talk.transport.closed

    run(Response(body, {"Content-Type": "text/plain"}), scene)


def test_body_waits_for_the_client() -> None:
    """Nothing is written while the transport is full, and the client counts as one that does not read."""

    async def scene(talk: Talk) -> None:
        write = talk.transport.write

        def full(data: object) -> None:
            write(data)
            talk.connection.pause_writing()

        talk.transport.write = full  # type: ignore[method-assign]
        [client] = talk.clients._all
        whole = await talk.say(GET)
        for _ in range(3):  # two pieces and the end
            assert client.owed
            assert not client.is_answering
            talk.connection.resume_writing()
            whole = await talk.rest()
        assert parsed(whole)[1] == bytes(CHUNK + 1)
        assert not client.owed

    run(Response(bytes(CHUNK + 1), {}), scene)


def test_response_held_until_taken() -> None:
    holding: list[Client] = []

    @contextmanager
    def held(client: Client) -> Iterator[None]:
        holding.append(client)
        yield
        holding.remove(client)

    async def scene(talk: Talk) -> None:
        talk.connection.pause_writing()
        await talk.say(GET)
        assert holding == [*talk.clients._all]
        talk.connection.connection_lost(None)
        await talk.rest()
        assert holding == []

    run(Response(b"x", {}, held=held), scene)


@pytest.mark.parametrize(
    ("said", "closed"),
    [
        (GET, False),
        (GET.replace(b"1.1", b"1.0"), True),
        (GET[:-2] + b"Connection: close\r\n\r\n", True),
        (GET + b"G", True),
        (GET[:-2] + b"Connection: close\r\n\r\n" + b"G", True),
        (GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", False),
        (GET[:-2] + b"Content-Length: 5\r\n\r\n", False),
    ],
)
def test_connection_kept_or_closed(said: bytes, closed: bool) -> None:
    async def scene(talk: Talk) -> None:
        for _ in range(1 if closed else 3):
            response, body = parsed(await talk.say(said))
            assert (response.status, body) == (200, b"here\n")
            assert talk.transport.closed is closed
            if b"Length" in said:
                assert await talk.say(b"hello") == b""

    run(line("here"), scene)


def test_connection_closes_while_the_server_ends() -> None:
    async def scene(talk: Talk) -> None:
        talk.clients.closing = True
        assert parsed(await talk.say(GET))[1] == b"here\n"
        assert talk.transport.closed

    run(line("here"), scene)


def test_request_after_a_late_body() -> None:
    """The body of a request that was answered already, and the next request, in one piece."""

    async def scene(talk: Talk) -> None:
        await talk.say(GET[:-2] + b"Content-Length: 5\r\n\r\n")
        assert parsed(await talk.say(b"hello" + GET.replace(b"/", b"/next", 1)))[1] == b"here\n"
        assert [request.path for request in talk.requests] == ["/", "/next"]

    run(line("here"), scene)


def test_request_values() -> None:
    headers = [(b"Host", b"x"), (b"Accept", b"a"), (b"ACCEPT", b"b;q=\xff")]
    event = h11.Request(method="GET", target="/a%2Fb%ff?n=1&n&m=%C3%A9&n=+2#", headers=headers)
    request = Request.from_event(event, Client(Transport(), 0))
    assert (request.path, request.headers) == ("/a/b\ufffd", {"host": "x", "accept": "a,b;q=\xff"})
    assert (request.parameters("n"), request.parameters("m")) == (["1", "", " 2#"], ["é"])
    assert request.header_bytes == 4 + 1 + 6 + 1 + 6 + 5


def test_http_error_is_one_line() -> None:
    async def scene(talk: Talk) -> None:
        async def refuse(_: Request) -> Response:
            raise HttpError(HTTPStatus.NOT_FOUND, "not here")

        talk.connection._app = refuse
        response, body = parsed(await talk.say(GET))
        assert (response.status, response.reason, body) == (404, "Not Found", b"not here\n")

    run(line("here"), scene)


def test_unsendable_response_ends_the_connection() -> None:
    async def scene(talk: Talk) -> None:
        assert await talk.say(GET) == b""
        assert talk.transport.closed
        assert talk.complaints == ["cannot send a response"]

    run(Response(b"", {"X": "blank at the end "}), scene)
