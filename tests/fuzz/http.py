"""Fuzzes the server on loopback: wrong HTTP, plain and inside TLS, and wrong TLS handshakes."""

import logging
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from random import Random

from kprobe_exporter.web.access import WebSettings
from kprobe_exporter.web.handshake import Tls
from tests.fuzz.material import certificates, hello
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Input, Take, Target
from tests.support.web_target import HASH, SAID, read_all
from tests.support.web_target import Target as Server

END = b"\r\n\r\n"
PATIENCE = 0.03
"""Seconds to wait for an answer where a request may be complete, before the client stops sending."""

LOOK = 50
"""Inputs between two checks that all servers still answer."""

GET = b" HTTP/1.1\r\nHost: x\r\n"
REQUESTS = (
    b"GET /metrics" + GET + b"Accept: application/openmetrics-text;version=1.0.0;q=0.6,*/*;q=0.1\r\n"
    b"Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n",
    b"GET /metrics?name[]=kprobe_up&name[]=%ff&name%5b%5d=x" + GET + b"\r\n",
    b"GET /" + GET + b"Authorization: Basic c2NyYXBlcjpzZWNyZXQ=\r\nConnection: close\r\n\r\n",
    b"HEAD /-/healthy" + GET + b"\r\nGET /-/ready" + GET + b"\r\n",
    b"POST /-/reload"
    + GET
    + b"Origin: http://x\r\nSec-Fetch-Site: cross-site\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /-/reload" + GET + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
    b"GET / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"OPTIONS *" + GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
)
WORDS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b" ", b"HTTP/1.1", b"HTTP/9.9", b"CONNECT x:1", b"http://[::1]:0/"),
    *(b"//", b"%00"),
    *(b"Content-Length: 1025\r\n", b"Content-Length: -1\r\n", b"Content-Length: " + b"9" * 5000 + b"\r\n"),
    *(b"Transfer-Encoding: gzip, chunked\r\n", b"Host: y\r\n", b"A: " + b"x" * 20_000 + b"\r\n"),
    *(b": \r\n", b" folded"),
    *(b"Accept: */*;q=nan\r\n", b"Accept-Encoding: gzip;q=1e999\r\n", b"Authorization: Basic \xff\r\n"),
    *(b"ffffffffffffffffffff\r\n", b"-1\r\n", b"?name[]=" + b"a" * 9000, b"Connection: keep-alive\r\n"),
)


@cache
def requests() -> Mutator:
    return Mutator(REQUESTS, WORDS)


@cache
def hellos() -> Mutator:
    return Mutator([hello(), REQUESTS[0]], [b"\x16\x03\x01\x02\x00\x01", b"\x15\x03\x03\x00\x02\x02\x28"])


def make(random: Random) -> Input:
    what = random.choice(("plain", "passwords", "plain", "TLS", "hello"))
    return Input(what, hellos()(random) if what == "hello" else requests()(random))


class Noticed(logging.Handler):
    """Collects unexpected log records, and exceptions that end a thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.all: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info or not message.startswith(SAID):
            self.all.append(f"{message} {record.exc_info}")

    def died(self, args: threading.ExceptHookArgs) -> None:
        self.all.append(f"{args.thread}: {args.exc_value!r}")


@contextmanager
def taking() -> Iterator[Take]:
    pairs = certificates()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pairs / "server.pem", pairs / "server.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE  # the kept certificates have expired
    servers = {
        "plain": Server(WebSettings(None, {}), None),
        "passwords": Server(WebSettings(None, {b"scraper": HASH}), None),
        "TLS": Server(WebSettings(Tls(context), {}), client),
    }
    noticed, taken = Noticed(), 0
    logging.getLogger().addHandler(noticed)
    threading.excepthook = noticed.died

    def take(given: Input) -> bool:
        nonlocal taken
        taken += 1
        server = servers["TLS" if given.what == "hello" else given.what]
        with server.connect() if given.what == "hello" else server.secure() as sock:
            answer = _answer(sock, given.data)
        assert given.what == "hello" or answer[:9] in (b"", b"HTTP/1.1 "), answer[:80]
        if taken % LOOK == 0:
            assert all(one.is_well() for one in servers.values())
        errors = [*noticed.all, *(error for one in servers.values() for error in one.errors)]
        noticed.all.clear()
        assert not errors, errors
        return answer.startswith(b"HTTP/1.1 2")

    with ExitStack() as running:
        for server in servers.values():
            server.web.start()
            running.callback(server.web.close)
        yield take


def _answer(sock: socket.socket, data: bytes) -> bytes:
    """Send the bytes in one part or in two, and return all of the answer."""
    middle = zlib.crc32(data) % (2 * len(data) + 1)
    heard = b""
    with suppress(OSError):
        for part in filter(None, (data[:middle], data[middle:])):
            sock.sendall(part)
        if END in data:
            heard = _soon(sock)
        if isinstance(sock, ssl.SSLSocket):
            sock.unwrap()  # TLS cannot be half-closed: unread bytes are lost
        else:
            sock.shutdown(socket.SHUT_WR)
    return heard + read_all(sock, OSError)


def _soon(sock: socket.socket) -> bytes:
    before = sock.gettimeout()
    sock.settimeout(PATIENCE)
    try:
        return sock.recv(65536)
    except TimeoutError:
        return b""
    finally:
        sock.settimeout(before)


TARGET = Target("http", make, taking)
