"""The TLS handshake that precedes a connection, with a time limit that no client can evade.

``create_server(ssl=…)`` is not used: it would keep one context for good, and clients that never begin
their handshake would not be counted.
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

from kprobe_exporter.web.clients import REQUEST_TIME, Client, Clients
from kprobe_exporter.web.connection import Connection

# Seconds that the server waits for the client's close_notify alert; few scrapers send one.
GOODBYE_TIME = 2

# By itself, asyncio has a buffer of 256 KiB for each TLS connection.
SSLProtocol.max_size = 16 * 1024

NOT_TLS = "a client asks by http, and there is only https here"
NOT_ADMITTED = "a client's certificate has none of the names in client_allowed_sans"


class Tls(NamedTuple):
    """How connections are secured.

    A client's certificate must have one of ``names`` (`client_allowed_sans`); if None, the context decides.
    ``curve`` is the only one that the context offers, None if it offers all: a context does not tell it.
    """

    context: ssl.SSLContext
    names: frozenset[str] | None = None
    curve: str | None = None

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client is admitted, given ``SSLSocket.getpeercert()`` of its certificate."""
        return self.names is None or not self.names.isdisjoint(_alternative_names(certificate or {}))


def _alternative_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            try:
                # OpenSSL writes an IPv6 address in full, and the configuration has its short form.
                yield str(ip_address(name.strip()))
            except ValueError:
                continue
        elif kind in ("DNS", "email", "URI"):
            yield name


class Door(asyncio.Protocol):
    """Performs the TLS handshake and then hands the transport to ``connection``.

    ``complain`` is called for failures that a wrong configuration of the server or of a client may cause.
    """

    def __init__(
        self,
        tls: Tls,
        clients: Clients,
        connection: Connection,
        complain: Callable[[str, BaseException | None], None],
    ) -> None:
        self._tls = tls
        self._clients = clients
        self._connection = connection
        self._complain = complain
        # Keeps the task alive: the event loop holds only a weak reference to it.
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = self._clients.add(transport)
        client.transport.pause_reading()  # start_tls() resumes it
        self._task = asyncio.get_running_loop().create_task(self._enter(client))

    async def _enter(self, client: Client) -> None:
        inside = False
        try:
            inside = await self._shake_hands(client)
        except OSError as error:
            # A client that hangs up is not reported: it may be a port check, or a scraper that was stopped.
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                if error.reason == "HTTP_REQUEST":
                    self._complain(NOT_TLS, None)
                else:
                    self._complain("a TLS handshake failed", error)
            # The error and its frames refer to each other: they would keep the handshake until a collection.
            error.__traceback__ = None
        finally:
            if not inside:
                self._clients.remove(client)
                client.drop()

    async def _shake_hands(self, client: Client) -> bool:
        """Return whether the connection has taken over. Raises OSError if the handshake fails."""
        # The client may have been dropped before this task ran. start_tls() does not notice that, and would
        # keep the 100 KB of the handshake until the time limit.
        if client.is_gone():
            return False
        early = _Early()
        secured = await asyncio.get_running_loop().start_tls(
            client.transport,
            early,
            self._tls.context,
            server_side=True,
            ssl_handshake_timeout=REQUEST_TIME,
            ssl_shutdown_timeout=GOODBYE_TIME,
        )
        if secured is None or early.lost:  # the connection was dropped meanwhile
            return False
        if not self._tls.admits(secured.get_extra_info("peercert")):
            self._complain(NOT_ADMITTED, None)
            return False
        secured.set_protocol(self._connection)
        self._connection.begin(client, secured)
        if early.data:
            self._connection.data_received(early.data)
        return True


class _Early(asyncio.Protocol):
    """Buffers data that arrives together with the end of the handshake."""

    def __init__(self) -> None:
        self.data = b""
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
