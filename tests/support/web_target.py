"""A web server in this process, and what it answers to bytes."""

import socket
import ssl
from contextlib import suppress

import bcrypt

from kprobe_exporter.web.access import WebSettings
from kprobe_exporter.web.handshake import NOT_TLS
from kprobe_exporter.web.listen import listen
from kprobe_exporter.web.routes import create_app
from kprobe_exporter.web.server import WebServer
from tests.support.patience import patience
from tests.unit.export.conftest import SNAPSHOT

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4))

SAID = (
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",
    "a TLS handshake failed: SSLError(",
    NOT_TLS,
)


class Target:
    """A server, with or without TLS, and with or without a password."""

    def __init__(self, config: WebSettings, client: ssl.SSLContext | None) -> None:
        self.errors: list[BaseException] = []
        app = create_app(lambda: SNAPSHOT, lambda: None, reload=lambda: None, settings=lambda: config)
        self.web = WebServer(app, listen(["127.0.0.1:0"]), self.errors.append, lambda: config.tls)
        self.port = int(self.web.addresses[0].rpartition(":")[2])
        self.client = client

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=patience(10))

    def secure(self) -> socket.socket:
        sock = self.connect()
        return self.client.wrap_socket(sock, server_hostname="localhost") if self.client else sock

    def is_well(self) -> bool:
        with self.secure() as sock:
            sock.sendall(b"GET /-/healthy HTTP/1.0\r\nAuthorization: Basic c2NyYXBlcjpzZWNyZXQ=\r\n\r\n")
            return read_all(sock).endswith(b"healthy\n")


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with suppress(OSError):
        while chunk := sock.recv(65536):
            data += chunk
    return data
