"""Responses, rendered once for all who ask at the same moment; a bound on what is unsent."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from kprobe_exporter.export.prometheus import accepts_gzip
from kprobe_exporter.web.clients import Client
from kprobe_exporter.web.messages import HttpError, Request, Response, line
from kprobe_exporter.web.networks import Network
from kprobe_exporter.web.turns import Turns

Result = TypeVar("Result")

MAX_UNSENT = 16 * 1024 * 1024
"""Bytes of all responses that clients have not taken yet. A response that many wait for counts once."""


class _Waiting(NamedTuple):
    """Requests for the same, each with whether it accepts gzip, and the task that renders for them."""

    requests: list[tuple[Request, bool]]
    networks: list[Network]
    """The networks that they come from: it is the rendering's turn when it is that of one of them."""
    forms: asyncio.Task[Mapping[bool, Response]]


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

        async def endpoint(request: Request) -> Response:
            reason = await self.run(request, call)
            if reason is not None:
                return line(reason, status)
            return line(done if isinstance(done, str) else await self.run(request, done))

        return endpoint

    async def run(self, request: Request, call: Callable[[], Result]) -> Result:
        """Return what ``call`` returns in one of the threads."""
        async with self._turns.turn([request.client.network]):
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def rendered(
        self, request: Request, key: Hashable, render: Callable[[Collection[Request]], Response]
    ) -> Response:
        """Answer with what ``render`` returns, called once for all requests with this ``key`` that wait.

        A request that waits for a thread is joined by the requests for the same that come meanwhile. So each
        rendering starts after all its requests have arrived. It is compressed once, if one of them accepts
        that. None is kept for later requests: a client that reads twice sees what happened in between, and
        the memory does not grow with the number of keys. If all clients have given up by then, as Prometheus
        does after its scrape timeout, nothing is rendered: otherwise an agent that is slower than its clients
        would work for those that have gone, and never again answer one in time.
        """
        if key not in self._waiting:
            self._waiting[key] = _Waiting([], [], asyncio.create_task(self._render(key, render)))
        waiting = self._waiting[key]
        gzipped = accepts_gzip(request.headers.get("accept-encoding", ""))
        waiting.requests.append((request, gzipped))
        waiting.networks.append(request.client.network)
        forms = await asyncio.shield(waiting.forms)  # others wait for it as well
        if gzipped not in forms:
            raise _gone()  # among the clients this one; others are answered in the other form
        response = forms[gzipped]
        return replace(response, held=partial(self._unsent.held, response))

    async def _render(
        self, key: Hashable, render: Callable[[Collection[Request]], Response]
    ) -> Mapping[bool, Response]:
        """Return the forms that the clients ask for, by whether they are compressed."""
        async with self._turns.turn(self._waiting[key].networks):
            requests = self._waiting.pop(key).requests
            wanted = {gzipped for request, gzipped in requests if not request.client.is_gone()}
            if not wanted:
                raise _gone()

            def forms() -> Mapping[bool, Response]:
                response = render([request for request, _ in requests])
                return {gzipped: _compressed(response) if gzipped else response for gzipped in wanted}

            return await asyncio.get_running_loop().run_in_executor(self._threads, forms)


def _compressed(response: Response) -> Response:
    if len(response.body) < 500:  # gzip's header costs more than compression saves
        return response
    body = gzip.compress(response.body, compresslevel=6)
    return Response(body, {**response.headers, "Content-Encoding": "gzip"})


def _gone() -> HttpError:
    """Return the error of a rendering for which no client waits any more."""
    return HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "the client has gone")


class Unsent:
    """The bytes that clients have not taken yet. Above ``limit`` bytes the slowest clients are dropped."""

    def __init__(self, limit: int = MAX_UNSENT) -> None:
        self._limit = limit
        self._clients: dict[Response, set[Client]] = {}

    @contextmanager
    def held(self, response: Response, client: Client) -> Iterator[None]:
        """Count the response while this client takes it."""
        self._clients.setdefault(response, set()).add(client)
        # Drop the clients of the oldest response, until the others fit. The latest may stay.
        while len(self._clients) > 1 and sum(len(one.body) for one in self._clients) > self._limit:
            for slow in self._clients.pop(next(iter(self._clients))):
                slow.drop()
        try:
            yield
        finally:
            clients = self._clients.get(response, set())
            clients.discard(client)
            if not clients:
                self._clients.pop(response, None)
