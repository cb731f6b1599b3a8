"""Who is connected: a bound on how many, and on how long each may let the server wait."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

# Far above the scrapers of one agent, far below the files that a process may open.
MAX_CONNECTIONS = 128

# Seconds: to send a whole request, its TLS handshake included, from the request to the last byte of
# the answer taken, and between two requests. The last is longer than a scrape interval of a minute.
REQUEST_TIME = 10
ANSWER_TIME = 30
IDLE_TIME = 75


class Talk(Protocol):
    """What is known of a connection that has sent a request."""

    def is_answering(self) -> bool:
        """Whether the client waits for us, and not we for the client."""


class Client:
    """One TCP connection. ``transport`` is TCP's, with TLS as well, for that one always ends."""

    def __init__(self, transport: asyncio.BaseTransport, now: float) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.since = now
        """When it began, or its latest request."""
        self.talk: Talk | None = None
        """None until its first request."""
        self.dropped = False

    @property
    def is_answering(self) -> bool:
        return self.talk is not None and self.talk.is_answering()

    def overdue(self, now: float) -> bool:
        """Whether the client has had its time."""
        if self.talk is None:
            limit = REQUEST_TIME
        elif self.is_answering or self.transport.get_write_buffer_size():
            limit = ANSWER_TIME
        else:
            limit = IDLE_TIME
        return now - self.since > limit

    def drop(self) -> None:
        """End it at once, whatever is unsent."""
        self.dropped = True
        self.transport.abort()


class Clients:
    """All connections of a server. Lives in its event loop alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._all: set[Client] = set()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, transport: asyncio.BaseTransport) -> Client:
        """Take a new connection in; another one goes if there are too many."""
        client = Client(transport, self.clock())
        self._all.add(client)
        if len(self._all) > MAX_CONNECTIONS:
            self._make_room(client)
        return client

    def remove(self, client: Client) -> None:
        self._all.discard(client)

    def drop_overdue(self) -> None:
        now = self.clock()
        for client in [client for client in self._all if client.overdue(now)]:
            client.drop()

    def drop_silent(self) -> None:
        """Drop those that have not asked anything yet."""
        for client in [client for client in self._all if client.talk is None]:
            client.drop()

    def drop_all(self) -> None:
        for client in list(self._all):
            client.drop()

    def _make_room(self, newcomer: Client) -> None:
        """Drop who has waited longest, first of those that never asked anything.

        To refuse the newcomer instead would let idle clients lock every scraper out.
        """
        waiting = [
            client
            for client in self._all
            if client is not newcomer and not client.dropped and not client.is_answering
        ]
        victim = min(waiting, key=lambda c: (c.talk is not None, c.since), default=newcomer)
        victim.drop()
