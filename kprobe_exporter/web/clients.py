"""The clients of a server, with bounds on their number and on the time that each may take."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from kprobe_exporter.web.networks import UNIX, KnownNetworks, Network, network

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
        peer = transport.get_extra_info("peername")
        host, *_ = (UNIX,) if isinstance(peer, str | bytes) else peer or ("",)
        self.network = network(host)
        self._answered = answered
        self.since = now
        """When the connection was accepted, or when its latest request arrived."""
        self.has_asked = False
        """Whether a request has arrived."""
        self.pipelines = False
        """Whether the client has sent a request before its previous one was answered."""
        self.owed = False
        """Whether the latest request is not answered completely."""
        self.is_secure = False
        """Whether the connection is encrypted."""
        self.is_known = False
        """Whether the latest request had the password of a user."""
        self.writable = asyncio.Event()
        """Cleared while the client does not read the bytes that were written."""
        self.writable.set()
        self.dropped = False

    @property
    def is_answering(self) -> bool:
        """Whether the server owes a response, and does not wait for the client to read."""
        return self.owed and self.writable.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether the server owes nothing, and nothing written is left to send."""
        return not (self.owed or self.transport.get_write_buffer_size())

    @property
    def turn_to_go(self) -> tuple[bool, bool, float]:
        """The order in which clients are dropped for others.

        First go those that pipeline, then those for which the server has nothing to do; of each the one that
        has waited longest.
        """
        return not self.pipelines, self.is_answering, self.since

    def is_gone(self) -> bool:
        """Return whether nothing can be sent to this client any more."""
        return self.transport.is_closing()

    def note_answer(self) -> None:
        """Note that this client was given an answer other than a refusal."""
        self._answered(self.network)

    def overdue(self, now: float) -> bool:
        """Whether the client has exceeded its time limit."""
        limit = REQUEST_TIME if not self.has_asked else IDLE_TIME if self.is_idle else ANSWER_TIME
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
        self.closing = False
        """Whether each connection closes after the response that it owes."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, transport: asyncio.BaseTransport) -> Client:
        """Register a new connection. If there are too many, drop one of the network that has most of them.

        Refusing the newcomer instead would let idle clients lock every scraper out.
        """
        newcomer = Client(transport, self.clock(), lambda network: self._known.add(network, self.clock()))
        self._all.add(newcomer)
        present = [client for client in self._all if not client.dropped]
        beginning = [client for client in present if not client.has_asked]
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

    def drop_overdue(self) -> None:
        """Drop the connections that have exceeded their time limits."""
        now = self.clock()
        self.drop(lambda client: client.overdue(now))
