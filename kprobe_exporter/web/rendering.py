"""Responses rendered once for all clients that ask at the same moment, and the bound on what is unsent."""

import asyncio
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kprobe_exporter.web.clients import Client

CHUNK = 16 * 1024
"""Bytes of a response that are written at once. The server holds about two chunks for each client."""

MAX_UNSENT = 16 * 1024 * 1024
"""Bytes of all responses that clients have not taken yet. A response that many wait for counts once."""

CLIENT = "client"
"""The name under which an ASGI scope's state holds the connection's ``Client``."""


@dataclass(frozen=True, slots=True, eq=False)
class Rendering:
    """A body and its headers. Any number of responses may share it."""

    body: bytes
    headers: Mapping[str, str]


class ClientsGone(Exception):
    """All clients that asked for a rendering have closed their connections."""


class Renderer:
    """Renders in threads. Used in one event loop.

    A request that waits for a thread is joined by the requests for the same that come meanwhile, so each
    rendering starts after all its requests have arrived. If their clients have given up by then, as
    Prometheus does after its scrape timeout, nothing is rendered: otherwise an agent that is slower than
    its clients would work for those that have gone, and never again answer one in time.
    """

    def __init__(self, threads: Executor, turn: asyncio.Semaphore) -> None:
        self._threads, self._turn = threads, turn
        self._waiting: dict[Hashable, tuple[list[Request], asyncio.Task[Rendering]]] = {}

    async def get(self, key: Hashable, render: Callable[[], Rendering], request: Request) -> Rendering:
        """Return what ``render`` returns, called in a thread once for all requests with this ``key``.

        Raises ClientsGone, and what ``render`` raises.
        """
        if key not in self._waiting:
            self._waiting[key] = [], asyncio.create_task(self._run(key, render))
        requests, task = self._waiting[key]
        requests.append(request)
        return await asyncio.shield(task)  # others wait for it as well

    async def _run(self, key: Hashable, render: Callable[[], Rendering]) -> Rendering:
        async with self._turn:
            requests, _ = self._waiting.pop(key)
            for request in requests:
                if not await request.is_disconnected():
                    return await asyncio.get_running_loop().run_in_executor(self._threads, render)
        raise ClientsGone


class Unsent:
    """What clients have not taken yet. Above ``limit`` bytes the slowest clients are dropped."""

    def __init__(self, limit: int = MAX_UNSENT) -> None:
        self._limit = limit
        self._clients: dict[Rendering, set[Client]] = {}

    @contextmanager
    def held(self, rendering: Rendering, client: Client) -> Iterator[None]:
        """Count the rendering while this client takes it."""
        self._clients.setdefault(rendering, set()).add(client)
        self._drop_slowest()
        try:
            yield
        finally:
            clients = self._clients.get(rendering, set())
            clients.discard(client)
            if not clients:
                self._clients.pop(rendering, None)

    def _drop_slowest(self) -> None:
        """Drop the clients of the oldest rendering, until the others fit. The latest may stay."""
        while len(self._clients) > 1 and sum(len(one.body) for one in self._clients) > self._limit:
            for client in self._clients.pop(next(iter(self._clients))):
                client.drop()


class SharedResponse(Response):
    """A response whose body is shared, and written in pieces as fast as the client takes it."""

    def __init__(self, rendering: Rendering, unsent: Unsent) -> None:
        super().__init__(rendering.body, headers=rendering.headers)
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
