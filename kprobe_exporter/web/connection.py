"""The open connections, with bounds on their number, on the time that each may take, and on their requests.

uvicorn has no options for these bounds, and neither has h11. This module alone overrides uvicorn's protocol,
whose methods are not documented, so pyproject.toml names one version of uvicorn.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kprobe_exporter.web.networks import KnownNetworks, Network, network

# Far more than the scrapers of one agent, and far below the limit of open files of a process.
MAX_CONNECTIONS = 128

# How many of them have not sent a request yet. A TLS handshake takes 100 KB.
MAX_BEGINNING = 64

# How many connections of a network that was answered lately are kept before those of others.
MAX_KEPT = 4

# Limits in seconds: until the first whole request has arrived, TLS handshake included; from a request until
# the client has taken the whole response; between two requests, longer than a scrape interval of a minute.
REQUEST_TIME = 10
ANSWER_TIME = 30
IDLE_TIME = 75

MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 1024
MAX_REQUEST_BYTES = MAX_HEADER_BYTES + MAX_BODY_BYTES

CHUNK = 16 * 1024
"""Bytes of a response that are written at once. The server holds about two chunks for each client."""

CLIENT = "client"
"""The name under which an ASGI scope's state holds the connection's ``Client``."""


class Client:
    """One TCP connection. ``transport`` is the TCP transport, also under TLS: it can always be aborted."""

    def __init__(
        self,
        transport: asyncio.BaseTransport,
        now: float,
        answered: Callable[[Network], None] = lambda network: None,
    ) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        host, *_ = transport.get_extra_info("peername") or ("",)
        self.network = network(host)
        self._answered = answered
        self.since = now
        """When the connection was accepted, or when its latest request arrived."""
        self.talk: Connection | None = None
        """None until its first request."""
        self.dropped = False

    @property
    def is_answering(self) -> bool:
        return self.talk is not None and self.talk.is_answering()

    @property
    def turn_to_go(self) -> tuple[bool, bool, float]:
        """The order in which clients are dropped for others.

        First go those that pipeline, then those for which the server has nothing to do; of each the one that
        has waited longest.
        """
        pipelines = self.talk is not None and self.talk.pipelines
        return not pipelines, self.is_answering, self.since

    def is_gone(self) -> bool:
        """Return whether nothing can be sent to this client any more."""
        return self.transport.is_closing()

    def note_answer(self) -> None:
        """Note that this client was given an answer other than a refusal."""
        self._answered(self.network)

    def overdue(self, now: float) -> bool:
        """Whether the client has exceeded its time limit."""
        if self.talk is None:
            limit = REQUEST_TIME
        elif self.is_answering or self.transport.get_write_buffer_size():
            limit = ANSWER_TIME
        else:
            limit = IDLE_TIME
        return now - self.since > limit

    def drop(self) -> None:
        """Abort the connection at once and discard unsent data."""
        self.dropped = True
        self.transport.abort()


class Clients:
    """All connections of a server. Only the thread of its event loop may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._all: set[Client] = set()
        self._known = KnownNetworks()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, transport: asyncio.BaseTransport) -> Client:
        """Register a new connection. If there are too many, drop one of the network that has most of them.

        Refusing the newcomer instead would let idle clients lock every scraper out.
        """
        newcomer = Client(transport, self.clock(), lambda network: self._known.add(network, self.clock()))
        self._all.add(newcomer)
        present = [client for client in self._all if not client.dropped]
        beginning = [client for client in present if client.talk is None]
        if len(present) > MAX_CONNECTIONS:
            self._drop_one(present, newcomer)
        elif len(beginning) > MAX_BEGINNING:
            self._drop_one(beginning, newcomer)
        return newcomer

    def _drop_one(self, present: list[Client], newcomer: Client) -> None:
        """Drop one of the widest network that has most of these clients, but not the newcomer."""
        kept: Counter[Network] = Counter()
        crowd = []
        # The last ones to go are kept.
        for client in sorted(present, key=lambda client: client.turn_to_go, reverse=True):
            if client.network in self._known and kept[client.network] < MAX_KEPT:
                kept[client.network] += 1
            elif client is not newcomer:
                crowd.append(client)
        wide = Counter(client.network.wide for client in present)
        narrow = Counter(client.network for client in present)
        # Of equals the last one goes, which is the first by its turn.
        most = max(
            reversed(crowd),
            key=lambda client: (wide[client.network.wide], narrow[client.network]),
            default=newcomer,
        )
        most.drop()

    def remove(self, client: Client) -> None:
        self._all.discard(client)

    def drop(self, condition: Callable[[Client], bool] = lambda _: True) -> None:
        """Drop the connections that meet a condition."""
        for client in [client for client in self._all if condition(client)]:
            client.drop()

    async def drop_overdue(self) -> None:  # uvicorn awaits it
        now = self.clock()
        self.drop(lambda client: client.overdue(now))


class Connection(H11Protocol):
    """One HTTP connection, used only by the thread of the server's event loop.

    By itself, uvicorn waits forever for the rest of a request and for a client to take its response, and
    queues requests that are sent before the previous one was answered (pipelining). Here such requests are
    not read, and the connection closes after the answer, as RFC 9112, section 9.3.2 lets a server do.
    ``peer`` is set before connection_made() if a TLS handshake came first.
    """

    def __init__(self, clients: Clients, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._clients = clients
        self.peer: Client | None = None
        self.pipelines = False
        """Whether the client has sent a request before its previous one was answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.transport.set_write_buffer_limits(high=CHUNK)
        if self.peer is None:
            self.peer = self._clients.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None:
            self._clients.remove(self.peer)
            self.peer.talk = None
        super().connection_lost(exc)
        # Nothing may hold the lost connection, which has 100 KB with TLS: neither uvicorn's idle timer, which
        # stays on if the client reset the connection, nor circular references.
        self._unset_keepalive_if_required()
        if self.cycle is not None:
            self.cycle.on_response = lambda: None

    def data_received(self, data: bytes) -> None:
        # With TLS, data may arrive after the server has closed its side, and uvicorn would answer it.
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.DONE:
            self._pipelined()
            return
        super().data_received(data[:MAX_REQUEST_BYTES])
        if len(data) > MAX_REQUEST_BYTES:
            self._pipelined()

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is cycle or self.peer is None:
            return
        self.scope["state"][CLIENT] = self.peer
        # The time for an answer goes on while the client has not taken the previous one.
        if self.peer.talk is None or not self.peer.transport.get_write_buffer_size():
            self.peer.since = self._clients.clock()
        self.peer.talk = self
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            self._pipelined()

    def _pipelined(self) -> None:
        self.pipelines = True
        self.flow.pause_reading()

    def on_response_complete(self) -> None:
        if self.pipelines:
            self.server_state.total_requests += 1
            self.transport.close()
        else:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        # The body of a valid request is malformed, and its response is under way or already sent. uvicorn
        # would send a second response and fail with a traceback.
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def is_answering(self) -> bool:
        """Whether the server owes a response, and does not wait for the client to read what it has sent."""
        return not (self.cycle.response_complete or self.flow.write_paused)
