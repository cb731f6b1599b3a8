"""A web server in this process, clients for it, and what it answers to bytes."""

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from typing import TypeVar

import bcrypt

from kprobe_exporter.model.snapshot import Family, Snapshot
from kprobe_exporter.web.access import WebSettings
from kprobe_exporter.web.connection import INVALID
from kprobe_exporter.web.handshake import NOT_TLS, Tls
from kprobe_exporter.web.listen import listen
from kprobe_exporter.web.messages import App
from kprobe_exporter.web.routes import create_app
from kprobe_exporter.web.server import WebServer
from tests.support.patience import eventually, patience
from tests.unit.export.conftest import SNAPSHOT

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4))

SAID = (
    INVALID,
    "a TLS handshake failed: SSLError(",
    NOT_TLS,
)

# 2 MB in 500 series, because few series cost the tests little time.
_MANY: dict[tuple[str, ...], float] = {(f"process-{i}-{'x' * 4000}",): float(i) for i in range(500)}
LARGE = Snapshot((Family("kprobe_large_total", "counter", "Much.", ("comm",), _MANY),), ())


class Served:
    """A server, with or without TLS, the errors that it reported, and clients for it."""

    def __init__(
        self, app: App, client: ssl.SSLContext | None = None, tls: Callable[[], Tls | None] | None = None
    ) -> None:
        self.errors: list[BaseException] = []
        self.web = WebServer(app, listen(["127.0.0.1:0"]), self.errors.append, tls or (lambda: None))
        self.port = int(self.web.addresses[0].rpartition(":")[2])
        self.client = client

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """Open a TCP connection from an address of this machine, without a handshake."""
        return socket.create_connection(("127.0.0.1", self.port), patience(10), (source, 0))

    def secure(self) -> socket.socket:
        """Open a connection, over TLS if the server has it."""
        sock = self.connect()
        return self.client.wrap_socket(sock, server_hostname="localhost") if self.client else sock

    def ask(
        self, path: str = "/-/healthy", method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("localhost", self.port)
        connection.sock = self.secure()
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def get(self, path: str = "/-/healthy") -> bytes:
        """Return the body of an answer with the status 200."""
        response, body = self.ask(path)
        assert response.status == 200
        return body

    @property
    def connections(self) -> int:
        return len(self.web._clients)


Server = TypeVar("Server", bound=Served)


@contextmanager
def serving(served: Server) -> Iterator[Server]:
    """Run the server until the context is left, and assert that it reported no error."""
    served.web.start()
    try:
        yield served
    finally:
        served.web.close()
    assert served.errors == []


class Target(Served):
    """A server with these settings and, with ``client``, TLS."""

    def __init__(self, config: WebSettings, client: ssl.SSLContext | None) -> None:
        app = create_app(lambda: SNAPSHOT, lambda: None, reload=lambda: None, settings=lambda: config)
        super().__init__(app, client, lambda: config.tls)

    def is_well(self) -> bool:
        with self.secure() as sock:
            sock.sendall(b"GET /-/healthy HTTP/1.0\r\nAuthorization: Basic c2NyYXBlcjpzZWNyZXQ=\r\n\r\n")
            return read_all(sock).endswith(b"healthy\n")


def read_all(sock: socket.socket, *ignored: type[OSError]) -> bytes:
    """Read until the server closes or resets the connection, or an error that is ``ignored``."""
    data = b""
    with suppress(ConnectionError, ssl.SSLError, *ignored):
        while chunk := sock.recv(65536):
            data += chunk
    return data


def reset(sock: socket.socket) -> None:
    """Close with RST, as the kernel does for a scraper that was killed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def client_hello(client: ssl.SSLContext) -> bytes:
    """Return the first bytes that a TLS client sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        client.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


FLOOD = 500
"""Connections of a flood: four times those that a server keeps, below the usual limit of 1,024 open files."""


def connects(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=3).close()
        return True
    return False


def flood_of_handshakes(port: int, words: bytes, rounds: int) -> None:
    """In each round, open FLOOD connections at once, send these bytes on each, and reset them."""
    for _ in range(rounds):
        with ExitStack() as stack:
            crowd = [socket.socket() for _ in range(FLOOD)]
            for sock in crowd:
                stack.callback(reset, sock)
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", port))
            for sock in crowd:
                with suppress(OSError):  # not connected yet, or dropped already
                    sock.sendall(words)
            # The server accepts this connection after the others. The kernel repeats an attempt that the
            # full queue has dropped ever more seldom, so another attempt is sooner there.
            eventually(partial(connects, port), 60)
