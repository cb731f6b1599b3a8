"""Responses: one line, or rendered once for all who ask at the same moment; a bound on what is unsent."""

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kprobe_exporter.export.prometheus import accepts_gzip
from kprobe_exporter.web.connection import CHUNK, CLIENT, Client
from kprobe_exporter.web.networks import Network
from kprobe_exporter.web.turns import Turns

log = logging.getLogger("kprobe_exporter.web")

Result = TypeVar("Result")

MAX_UNSENT = 16 * 1024 * 1024
"""Bytes of all responses that clients have not taken yet. A response that many wait for counts once."""

_NOSNIFF = {"X-Content-Type-Options": "nosniff"}


def line(text: str, status: int = HTTPStatus.OK, headers: Mapping[str, str] = {}) -> Response:
    """Return a text/plain response; characters that UTF-8 cannot encode become backslash escapes."""
    return Response(
        f"{text}\n".encode("utf-8", "backslashreplace"),
        status,
        headers={"Content-Type": "text/plain; charset=utf-8", **_NOSNIFF, **headers},
    )


@dataclass(frozen=True, slots=True, eq=False)
class Rendering:
    """A body and its headers. Any number of responses may share it."""

    body: bytes
    headers: Mapping[str, str]

    def compressed(self) -> "Rendering":
        if len(self.body) < 500:  # gzip's header costs more than compression saves
            return self
        body = gzip.compress(self.body, compresslevel=6)
        return Rendering(body, {**self.headers, "Content-Encoding": "gzip"})


class _ClientsGone(Exception):
    """All clients that asked for a rendering have closed their connections."""


class _Waiting(NamedTuple):
    """Requests for the same, each with whether it accepts gzip, and the task that renders for them."""

    requests: list[tuple[Request, bool]]
    networks: list[Network]
    """Where they come from: it is the rendering's turn when it is that of one of them."""
    forms: asyncio.Task[Mapping[bool, Rendering]]


class Workers:
    """Threads that compute responses. A request waits for a thread in the event loop; networks take turns."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._turns = Turns(threads)
        self._waiting: dict[Hashable, _Waiting] = {}
        self._unsent = Unsent()

    def endpoint(
        self, call: Callable[[], str | None], done: str | Callable[[], str], status: HTTPStatus
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers with ``done``, or with ``status`` and the reason that ``call`` returns.

        ``call`` runs even if the client has gone.
        """

        async def answer(request: Request) -> Response:
            reason = await self.run(request, call)
            if reason is not None:
                return line(reason, status)
            return line(done if isinstance(done, str) else await self.run(request, done))

        async def endpoint(request: Request) -> Response:
            return await guarded(request, answer(request))

        return endpoint

    async def run(self, request: Request, call: Callable[[], Result]) -> Result:
        """Return what ``call`` returns in one of the threads."""
        async with self._turns.turn([client_network(request)]):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def rendered(
        self, request: Request, key: Hashable, render: Callable[[Collection[Request]], Rendering]
    ) -> Response:
        """Answer with what ``render`` returns, called once for all requests with this ``key`` that wait.

        A request that waits for a thread is joined by the requests for the same that come meanwhile, so each
        rendering starts after all its requests have arrived. It is compressed once, if one of them accepts
        that. None is kept for later requests: a client that reads twice sees what happened in between, and
        the memory does not grow with the number of keys. If all clients have given up by then, as Prometheus
        does after its scrape timeout, nothing is rendered: otherwise an agent that is slower than its clients
        would work for those that have gone, and never again answer one in time.
        """
        if key not in self._waiting:
            self._waiting[key] = _Waiting([], [], asyncio.create_task(self._render(key, render)))
        waiting = self._waiting[key]
        gzipped = accepts_gzip(",".join(request.headers.getlist("accept-encoding")))
        waiting.requests.append((request, gzipped))
        waiting.networks.append(client_network(request))

        async def shared() -> Response:
            forms = await asyncio.shield(waiting.forms)  # others wait for it as well
            if gzipped not in forms:
                raise _ClientsGone  # among them this one; others are answered in the other form
            return SharedResponse(forms[gzipped], self._unsent)

        return await guarded(request, shared())

    async def _render(
        self, key: Hashable, render: Callable[[Collection[Request]], Rendering]
    ) -> Mapping[bool, Rendering]:
        """Return the forms that the clients ask for, by whether they are compressed."""
        async with self._turns.turn(self._waiting[key].networks):
            requests = self._waiting.pop(key).requests
            wanted = {gzipped for request, gzipped in requests if not await _has_gone(request)}
            if not wanted:
                raise _ClientsGone

            def forms() -> Mapping[bool, Rendering]:
                rendering = render([request for request, _ in requests])
                return {gzipped: rendering.compressed() if gzipped else rendering for gzipped in wanted}

            return await asyncio.get_running_loop().run_in_executor(self._threads, forms)


def client_network(request: Request) -> Network:
    """Return the network of the client that sent a request."""
    client: Client = request.scope["state"][CLIENT]
    return client.network


async def _has_gone(request: Request) -> bool:
    """Return whether the client has closed its connection, without waiting.

    `Request.is_disconnected` does the same by anyio's event loop, whose 20 modules take 1.3 MB.
    """
    try:
        async with asyncio.timeout(0):  # it cancels only what waits
            message = await request.receive()
    except TimeoutError:
        return False
    return bool(message["type"] == "http.disconnect")


async def guarded(request: Request, answer: Awaitable[Response]) -> Response:
    """Return the answer, or one line that says why there is none."""
    try:
        return await answer
    except _ClientsGone:
        return line("the client has gone", HTTPStatus.SERVICE_UNAVAILABLE)
    except asyncio.CancelledError:
        # The server stops and does not wait any longer; the worker's response is discarded.
        return line("the agent stops", HTTPStatus.SERVICE_UNAVAILABLE)
    except HTTPException:
        raise  # the application answers it
    except Exception as error:
        # %r keeps the message on one line.
        debug = log.isEnabledFor(logging.DEBUG)
        log.error("cannot answer %s: %r", request.url.path, error, exc_info=debug)
        return line("something went wrong: see the agent's log", HTTPStatus.INTERNAL_SERVER_ERROR)


class Unsent:
    """What clients have not taken yet. Above ``limit`` bytes the slowest clients are dropped."""

    def __init__(self, limit: int = MAX_UNSENT) -> None:
        self._limit = limit
        self._clients: dict[Rendering, set[Client]] = {}

    @contextmanager
    def held(self, rendering: Rendering, client: Client) -> Iterator[None]:
        """Count the rendering while this client takes it."""
        self._clients.setdefault(rendering, set()).add(client)
        # Drop the clients of the oldest rendering, until the others fit. The latest may stay.
        while len(self._clients) > 1 and sum(len(one.body) for one in self._clients) > self._limit:
            for slow in self._clients.pop(next(iter(self._clients))):
                slow.drop()
        try:
            yield
        finally:
            clients = self._clients.get(rendering, set())
            clients.discard(client)
            if not clients:
                self._clients.pop(rendering, None)


class SharedResponse(Response):
    """A response whose body is shared, and written in pieces as fast as the client takes it."""

    def __init__(self, rendering: Rendering, unsent: Unsent) -> None:
        super().__init__(rendering.body, headers={**_NOSNIFF, **rendering.headers})
        self._rendering, self._unsent = rendering, unsent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client: Client = scope["state"][CLIENT]
        body = self._rendering.body
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with self._unsent.held(self._rendering, client):
            for start in range(0, len(body), CHUNK):
                piece = body[start : start + CHUNK]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})
