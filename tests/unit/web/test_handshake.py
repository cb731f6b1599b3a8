"""TLS in front of the server: a client that completes the handshake is served, others delay no client."""

import inspect
import logging
import socket
import ssl
from asyncio import selector_events, sslproto
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from kprobe_exporter.web import clients
from kprobe_exporter.web import server as module
from kprobe_exporter.web.handshake import NOT_ADMITTED, NOT_TLS, Tls
from kprobe_exporter.web.routes import create_app
from tests.support.certificates import Authority, Pair
from tests.support.patience import eventually, within
from tests.support.resident import ResidentPeak
from tests.support.web_target import (
    LARGE,
    Served,
    client_hello,
    flood_of_handshakes,
    read_all,
    reset,
    serving,
)

REQUEST = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"

FLOOD_ROUNDS = 10
MAX_FLOOD_MB = 30
"""128 handshakes take 13 MB."""


class Secured(Served):
    """A server with TLS, and clients for it."""

    client: ssl.SSLContext

    def __init__(self, tls: Tls, authority: Pair) -> None:
        self.tls = tls
        client = ssl.create_default_context(cafile=authority.certificate)
        super().__init__(create_app(lambda: LARGE, lambda: None), client, lambda: self.tls)

    def secure(self) -> ssl.SSLSocket:
        return self.client.wrap_socket(self.connect(), server_hostname="localhost")


@pytest.fixture(scope="module")
def shared(authority: Authority, server: Pair) -> Iterator[Secured]:
    with serving(Secured(Tls(server.context()), authority)) as secured:
        yield secured


@pytest.fixture
def secured(shared: Secured, server: Pair, caplog: pytest.LogCaptureFixture) -> Iterator[Secured]:
    """A server with TLS. A test may cause known log lines only, and no traceback."""
    eventually(lambda: shared.connections == 0)
    shared.web._complain._quiet_until.clear()
    shared.tls = Tls(server.context())
    yield shared
    eventually(lambda: shared.connections == 0)
    shared.tls = Tls(server.context())
    assert shared.get() == b"healthy\n"
    records = caplog.get_records("call") + caplog.get_records("teardown")
    ours = [record for record in records if record.name.startswith(("kprobe_exporter", "asyncio"))]
    assert [record for record in ours if record.exc_info] == []
    said = {record.getMessage().split(":")[0] for record in ours}
    assert said <= {"a TLS handshake failed", NOT_ADMITTED, NOT_TLS}


def is_healthy(sock: socket.socket) -> bool:
    """Send a request, and read the whole response: its head and its body are separate TLS records."""
    sock.sendall(REQUEST)
    data = b""
    while not data.endswith(b"healthy\n"):
        if not (chunk := sock.recv(65536)):
            return False
        data += chunk
    return True


def test_who_leaves_before_all_is_answered_is_not_spoken_of(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with secured.secure() as sock, suppress(OSError):
            sock.sendall(REQUEST * 2 + b"T /\r\n\r\n")
            sock.unwrap()
    for message, source in zip(module.LEFT, (sslproto, selector_events), strict=True):
        assert repr(message) in inspect.getsource(source)
        logging.getLogger("asyncio").warning(message)
    assert {record.getMessage() for record in caplog.records} <= {"Invalid HTTP request received."}
    caplog.clear()


def test_it_serves(secured: Secured) -> None:
    assert secured.get() == b"healthy\n"
    assert len(secured.get("/metrics")) > 2_000_000


def test_a_connection_is_kept(secured: Secured) -> None:
    with secured.secure() as sock:
        for _ in range(3):
            assert is_healthy(sock)
        assert secured.connections == 1


def test_a_request_that_comes_with_the_end_of_the_handshake(secured: Secured) -> None:
    with secured.connect() as sock:
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = secured.client.wrap_bio(to_client, to_server, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            end.do_handshake()
        sock.sendall(to_server.read())
        while True:
            to_client.write(sock.recv(65536))
            try:
                end.do_handshake()
                break
            except ssl.SSLWantReadError:
                continue
        end.write(REQUEST)
        sock.sendall(to_server.read())  # one segment
        answer = b""
        while not answer.endswith(b"healthy\n"):
            to_client.write(sock.recv(65536))
            with suppress(ssl.SSLWantReadError):
                while True:
                    answer += end.read(65536)


def test_what_changes_holds_from_the_next_connection_on(secured: Secured, authority: Authority) -> None:
    def serial() -> object:
        with secured.secure() as sock:
            certificate = sock.getpeercert()
            assert certificate
            return certificate["serialNumber"]

    with secured.secure() as old:
        before = serial()
        secured.tls = Tls(authority.issue("renewed").context())
        assert serial() != before
        assert is_healthy(old)


def test_silent_clients_are_dropped(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "REQUEST_TIME", 0)
    with secured.connect() as silent, secured.connect() as slow, secured.secure() as idle:
        slow.sendall(client_hello(secured.client)[:20])
        assert read_all(silent) == read_all(slow) == read_all(idle) == b""
    eventually(lambda: secured.connections == 0)


def test_many_unfinished_handshakes_do_not_block_others(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "REQUEST_TIME", 3600)
    with ExitStack() as stack:
        crowd = [stack.enter_context(secured.connect()) for _ in range(clients.MAX_CONNECTIONS + 50)]
        assert secured.get() == b"healthy\n"
        assert read_all(crowd[0]) == b""
        assert secured.connections <= clients.MAX_CONNECTIONS
    eventually(lambda: secured.connections == 0)


def test_clients_that_do_not_take_their_answer_are_dropped(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ANSWER_TIME", 0)
    with secured.secure() as sock:
        sock.sendall(REQUEST.replace(b"/-/healthy", b"/metrics") * 8)
        eventually(lambda: secured.connections == 0)


@pytest.mark.parametrize("end", [reset, socket.socket.close])
@pytest.mark.parametrize("said", [0, 20, 10_000])
def test_clients_that_go_in_the_middle_of_the_handshake(
    secured: Secured, end: Callable[[socket.socket], None], said: int
) -> None:
    for _ in range(5):
        sock = secured.connect()
        sock.sendall(client_hello(secured.client)[:said])
        end(sock)


@pytest.mark.parametrize("end", [reset, socket.socket.close, ssl.SSLSocket.unwrap])
@pytest.mark.parametrize("asked", [b"", REQUEST, REQUEST.replace(b"/-/healthy", b"/metrics")])
def test_clients_that_go_after_the_handshake(
    secured: Secured, end: Callable[[socket.socket], None], asked: bytes
) -> None:
    for _ in range(5):
        sock = secured.secure()
        sock.sendall(asked)
        with suppress(OSError):
            end(sock)
        sock.close()


@pytest.mark.parametrize("garbage", [REQUEST, b"\0" * 1000, bytes(range(256)) * 100, b"\x16\x03\x01\xff\xff"])
def test_garbage(secured: Secured, garbage: bytes) -> None:
    with secured.connect() as sock, suppress(OSError):
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)


def test_http_is_told_from_garbage(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    with secured.connect() as sock:
        sock.sendall(REQUEST)
        read_all(sock)
    eventually(lambda: secured.connections == 0)
    assert NOT_TLS in caplog.messages


def test_a_failed_handshake_is_said_once_a_minute(
    secured: Secured, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    distrustful = ssl.create_default_context()
    for _ in range(3):
        with pytest.raises(ssl.SSLError), secured.connect() as sock:
            distrustful.wrap_socket(sock, server_hostname="localhost")
        eventually(lambda: secured.connections == 0)
    (line,) = [record.getMessage() for record in caplog.records if "kprobe" in record.name]
    assert line.startswith("a TLS handshake failed: SSLError(1, '[SSL: TLSV1_ALERT_UNKNOWN_CA]")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("names", "shown", "served"),
    [
        (None, "DNS:prometheus.example", True),
        (["prometheus.example"], "DNS:prometheus.example", True),
        (["prometheus.example"], "DNS:other.example", False),
        (None, None, False),
    ],
)
def test_clients_certificates(
    secured: Secured,
    authority: Authority,
    server: Pair,
    names: list[str] | None,
    shown: str | None,
    served: bool,
) -> None:
    secured.tls = Tls(server.context(authority), None if names is None else frozenset(names))
    client = ssl.create_default_context(cafile=authority.certificate)
    if shown:
        someone = authority.issue("someone", shown)
        client.load_cert_chain(someone.certificate, someone.key)
    with suppress(OSError), client.wrap_socket(secured.connect(), server_hostname="localhost") as sock:
        assert is_healthy(sock) is served


def test_close_is_bounded(
    authority: Authority, server: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.3)
    with serving(Secured(Tls(server.context()), authority)) as secured, ExitStack() as stack:
        silent = stack.enter_context(secured.connect())
        idle = stack.enter_context(secured.secure())
        assert is_healthy(idle)
        taking = stack.enter_context(secured.secure())
        taking.sendall(REQUEST.replace(b"/-/healthy", b"/metrics") * 8)
        eventually(lambda: secured.connections == 3)
        with within(2):
            secured.web.close()
        assert not secured.web._thread.is_alive()
        assert read_all(silent) == b""
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


def test_memory_in_a_flood_of_unfinished_handshakes(secured: Secured) -> None:
    """Clients send 10 bytes of a ClientHello and connect again; the server forgets those that it dropped."""
    hello = client_hello(secured.client)[:10]
    assert secured.get() == b"healthy\n"
    peak = ResidentPeak()
    flood_of_handshakes(secured.port, hello, FLOOD_ROUNDS)
    added = peak.added_mb()
    print(f"{added:.0f} MB more for the handshakes of {FLOOD_ROUNDS} rounds")
    assert secured.get() == b"healthy\n"
    assert added < MAX_FLOOD_MB
