"""The open connections: a bound on their number, and on the time that each may make the server wait."""

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

# Far more than the scrapers of one agent, and far below the limit of open files of a process.
MAX_CONNECTIONS = 128

# Limits in seconds: until the first whole request has arrived, TLS handshake included; from a request until
# the client has taken the whole response; between two requests, longer than a scrape interval of a minute.
REQUEST_TIME = 10
ANSWER_TIME = 30
IDLE_TIME = 75


def network(host: str) -> str:
    """Return what stands for one client: an IPv4 address, or the first 64 bits of an IPv6 address.

    A subscriber of IPv6 has at least 2**64 addresses (RFC 6177).
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


class Talk(Protocol):
    """A connection that has sent a request, as far as ``Client`` knows it."""

    pipelines: bool

    def is_answering(self) -> bool:
        """Whether the client is waiting for the server, rather than the server for the client."""


class Client:
    """One TCP connection. ``transport`` is the TCP transport, also under TLS: it can always be aborted."""

    def __init__(self, transport: asyncio.BaseTransport, now: float) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        host, *_ = transport.get_extra_info("peername") or ("",)
        self.network = network(host)
        self.since = now
        """When the connection was accepted, or when its latest request arrived."""
        self.talk: Talk | None = None
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

    def __len__(self) -> int:
        return len(self._all)

    def add(self, transport: asyncio.BaseTransport) -> Client:
        """Register a new connection, and drop one connection if there are too many."""
        client = Client(transport, self.clock())
        self._all.add(client)
        if sum(not client.dropped for client in self._all) > MAX_CONNECTIONS:
            self._make_room(client)
        return client

    def remove(self, client: Client) -> None:
        self._all.discard(client)

    def drop_overdue(self) -> None:
        now = self.clock()
        for client in [client for client in self._all if client.overdue(now)]:
            client.drop()

    def drop_silent(self) -> None:
        """Drop the connections that have not sent a request yet."""
        for client in [client for client in self._all if client.talk is None]:
            client.drop()

    def drop_all(self) -> None:
        for client in list(self._all):
            client.drop()

    def _make_room(self, newcomer: Client) -> None:
        """Drop a connection of the network that has most of them.

        Refusing the newcomer instead would let idle clients lock every scraper out.
        """
        present = [client for client in self._all if not client.dropped]
        numbers = Counter(client.network for client in present)
        most = max(numbers.values())
        crowd = [one for one in present if one is not newcomer and numbers[one.network] == most]
        min(crowd, key=lambda client: client.turn_to_go, default=newcomer).drop()
