"""The server against clients that are idle, slow, gone or hostile; and how it shuts down."""

import asyncio
import gc
import itertools
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection

import pytest

from kprobe_exporter.model.snapshot import Snapshot
from kprobe_exporter.web import clients, server
from kprobe_exporter.web.clients import MAX_CONNECTIONS, Client, Clients
from kprobe_exporter.web.connection import INVALID, Connection
from kprobe_exporter.web.listen import listen
from kprobe_exporter.web.messages import App, Request, Response
from kprobe_exporter.web.networks import MAX_KNOWN_OF_WIDE, KnownNetworks, network
from kprobe_exporter.web.routes import create_app
from tests.support.churn import Churn
from tests.support.patience import eventually, patience, within
from tests.support.web_target import LARGE, Served, read_all, reset, serving

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH = REQUEST.replace(b"/metrics", b"/-/healthy")


def app_of(snapshot: Callable[[], Snapshot]) -> App:
    return create_app(snapshot, lambda: None)


def large() -> Served:
    return Served(app_of(lambda: LARGE))


def scrape(served: Served) -> None:
    served.get("/metrics?name[]=kprobe_up")


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving(large()) as served:
        yield served


@pytest.fixture
def served(shared: Served, caplog: pytest.LogCaptureFixture) -> Iterator[Served]:
    """A server of a large snapshot. A test may cause one known log line only, and no traceback."""
    eventually(lambda: shared.connections == 0)
    # A message that was logged in one test must be logged again in the next.
    shared.web._complain._quiet_until.clear()
    yield shared
    eventually(lambda: shared.connections == 0)
    scrape(shared)
    # The test is over here, so caplog.records only holds the records of the teardown.
    records = caplog.get_records("call") + caplog.get_records("teardown")
    assert [record for record in records if record.exc_info] == []
    assert {record.getMessage() for record in said(records)} <= {INVALID}


def said(records: list[logging.LogRecord]) -> list[logging.LogRecord]:
    """Return the records of our logger and asyncio's."""
    return [r for r in records if r.name.startswith("kprobe_exporter") or r.name == "asyncio"]


def test_idle_and_slow_clients_do_not_delay_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are dropped after an hour only, so a scrape that waited for one of them would not be answered."""
    monkeypatch.setattr(clients, "REQUEST_TIME", 3600)
    monkeypatch.setattr(clients, "ANSWER_TIME", 3600)
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(served.connect())
        slow = [stack.enter_context(served.connect()) for _ in range(20)]
        # One client asks for much data and reads none.
        stack.enter_context(served.connect()).sendall(REQUEST)
        for byte in REQUEST[:20]:
            for sock in slow:
                sock.sendall(bytes([byte]))
            scrape(served)


def test_many_idle_clients_do_not_block_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "REQUEST_TIME", 3600)
    with ExitStack() as stack:
        crowd = [stack.enter_context(served.connect()) for _ in range(MAX_CONNECTIONS + 50)]
        scrape(served)
        # The client that waited longest was dropped, well before its timeout.
        assert crowd[0].recv(1) == b""
        assert served.connections <= MAX_CONNECTIONS


def test_clients_that_never_ask_are_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "REQUEST_TIME", 0)
    with served.connect() as silent, served.connect() as slow:
        slow.sendall(REQUEST[:10])
        assert read_all(silent) == b""
        assert read_all(slow) == b""


def test_clients_that_do_not_take_their_answer_are_dropped(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ANSWER_TIME", 0)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(patience(10))
        sock.connect(("127.0.0.1", served.port))
        # The responses do not fit into the kernel's socket buffers.
        sock.sendall(REQUEST * 8)
        assert sock.recv(1)
        eventually(lambda: served.connections == 0)


def test_idle_connections_are_kept_for_the_next_scrape(served: Served) -> None:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=patience(10))
    for _ in range(3):
        connection.request("GET", "/-/healthy")
        assert connection.getresponse().read() == b"healthy\n"
        port = connection.sock.getsockname()
    assert connection.sock.getsockname() == port
    assert served.connections == 1
    connection.close()


@pytest.mark.parametrize("first", [HEALTH, REQUEST])
@pytest.mark.parametrize("more", [1, 2000])
def test_a_client_that_pipelines_gets_one_answer(served: Served, first: bytes, more: int) -> None:
    with served.connect() as sock:
        with suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(first + HEALTH * more)
        assert read_all(sock).count(b"HTTP/1.1 200 OK") == 1


def test_clients_that_pipeline_do_not_block_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than connections, which come again at once; they would be answered for an hour."""
    monkeypatch.setattr(clients, "ANSWER_TIME", 3600)
    over = threading.Event()

    def pipeline() -> None:
        while not over.is_set():
            with suppress(OSError), served.connect() as sock:
                sock.sendall(REQUEST.replace(b"/metrics", b"/metrics?name[]=kprobe_up") * 100)
                sock.recv(65536)
                over.wait(0.1)

    hostile = [threading.Thread(target=pipeline) for _ in range(MAX_CONNECTIONS)]
    for one in hostile:
        one.start()
    try:
        for _ in range(10):
            scrape(served)
    finally:
        over.set()
        for one in hostile:
            one.join()


class FakeTransport(asyncio.Transport):
    """A transport that only knows its peer."""

    def __init__(self, host: str | None, peer: str | bytes | None = None) -> None:
        super().__init__({"peername": (host, 1) if host else peer})
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def ask(client: Client) -> None:
    """Do as if a request of this client had arrived."""
    client.has_asked = client.owed = True


def test_the_network_with_most_connections_makes_room() -> None:
    """Though all of its clients wait for an answer, and a client of another network is idle."""
    known = Clients(itertools.count().__next__)
    other = known.add(FakeTransport("192.0.2.1"))
    many = []
    for number in range(1, MAX_CONNECTIONS):
        many.append(known.add(FakeTransport(f"2001:db8::{number:x}")))
        ask(many[-1])
        many[-1].pipelines = number == 6
    newcomers = [known.add(FakeTransport("198.51.100.7")) for _ in range(2)]
    assert [client for client in many if client.dropped] == [many[0], many[5]]
    assert not any(client.dropped for client in (other, *newcomers))


CROWD = 300


@pytest.mark.parametrize(
    ("crowd", "scraper"),
    [("127.0.{}.9", "192.0.2.1"), ("192.0.3.{}", "192.0.2.1"), ("2001:db8:1:{:x}::9", "2001:db8:2::1")],
)
def test_addresses_of_one_wide_network_are_one_client(crowd: str, scraper: str) -> None:
    """A client with 300 addresses of loopback, a /24 or a /48 does not push out another one."""
    known = Clients(itertools.count(step=0.01).__next__)
    waiting = known.add(FakeTransport(scraper))
    for number in range(CROWD):
        ask(known.add(FakeTransport(crowd.format(number % 256))))
    newcomer = known.add(FakeTransport(scraper))
    for number in range(CROWD):
        known.add(FakeTransport(crowd.format(number % 256)))
    assert not any(client.dropped for client in (waiting, newcomer))


def test_a_network_that_was_answered_lately_keeps_places() -> None:
    """Clients of its own wide network, and of 300 others, do not push it out; nor can they take its place."""
    known = Clients(itertools.count(step=0.01).__next__)
    scraper = known.add(FakeTransport("10.0.0.1"))
    scraper.note_answer()
    for address in (f"10.{n}.{m}.9" for m in range(2) for n in range(CROWD // 2)):
        client = known.add(FakeTransport(address))
        ask(client)
        client.note_answer()
    assert not scraper.dropped
    later = [known.add(FakeTransport("10.0.0.1")) for _ in range(3)]
    for number in range(2, 2 + CROWD):
        known.add(FakeTransport(f"10.0.0.{number % 254 + 2}"))
    assert not any(client.dropped for client in (scraper, *later))


def test_a_network_is_known_while_it_goes_on_asking() -> None:
    known = KnownNetworks()
    scraper = network("192.0.2.1")
    known.add(scraper, 0)
    for number in range(CROWD):
        known.add(network(f"10.{number % 256}.{number // 256}.1"), 1)
    known.add(scraper, 290)
    known.add(network("198.51.100.1"), 302)  # those of second 1 have gone
    assert scraper in known
    assert network("198.51.100.1") in known
    assert network("10.1.0.1") not in known
    for number in range(2, CROWD):
        known.add(network(f"192.0.2.{number % 256}"), 303)
    assert sum(network(f"192.0.2.{number}") in known for number in range(256)) == MAX_KNOWN_OF_WIDE


@pytest.mark.parametrize("address", ["127.0.1.{}", "127.0.0.1"], ids=["loopback", "the scraper's own"])
def test_scrapes_beside_clients_that_connect_again(served: Served, address: str) -> None:
    """300 clients connect again as soon as they are dropped; each of 10 scrapes is answered."""
    addresses = [address.format(number % 255 + 1) for number in range(CROWD)]
    with Churn(served.port, addresses) as churn:
        eventually(lambda: churn.connections > 2 * CROWD)
        for _ in range(10):
            scrape(served)
        print(f"{churn.connections} connections of others")


@pytest.mark.parametrize(
    ("host", "wide", "narrow"),
    [
        ("192.0.2.1", "192.0.2.0/24", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.0/24", "192.0.2.1"),
        ("127.1.2.3", "loopback", "127.1.2.3"),
        ("::1", "loopback", "::/64"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/48", "fe80::/64"),
        ("", "", ""),
    ],
)
def test_a_clients_network(host: str, wide: str, narrow: str) -> None:
    assert network(host) == (wide, narrow)


@pytest.mark.parametrize("peer", ["", "/tmp/client.sock", b"\0client"])
def test_clients_of_unix_sockets_are_one_network(peer: str | bytes) -> None:
    assert Client(FakeTransport(None, peer), 0).network == ("unix", "unix")


@pytest.mark.parametrize(
    ("now", "asked", "answered", "unsent", "overdue"),
    [
        (10.0, False, False, 0, False),
        (10.1, False, False, 0, True),
        (30.0, True, False, 0, False),
        (30.1, True, False, 0, True),
        (30.1, True, True, 1, True),
        (75.0, True, True, 0, False),
        (75.1, True, True, 0, True),
    ],
)
def test_patience(now: float, asked: bool, answered: bool, unsent: int, overdue: bool) -> None:
    class Transport(asyncio.Transport):
        def get_write_buffer_size(self) -> int:
            return unsent

    client = Client(Transport(), 0)
    client.has_asked, client.owed = asked, asked and not answered
    assert client.overdue(now) is overdue


@pytest.mark.parametrize("close", [reset, socket.socket.close])
@pytest.mark.parametrize("read", [0, 1, 5000])
def test_a_scraper_that_goes_in_the_middle(
    served: Served, close: Callable[[socket.socket], None], read: int
) -> None:
    for _ in range(5):
        sock = served.connect()
        sock.sendall(REQUEST)
        if read:
            sock.recv(read)
        close(sock)


def test_half_open(served: Served) -> None:
    """A client that has shut down its sending side still gets its response."""
    with served.connect() as sock:
        sock.sendall(HEALTH)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock).endswith(b"healthy\n")


CHUNKED = b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

GARBAGE = {
    "empty lines": b"\r\n" * 1000,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "binary": bytes(range(256)) * 64,
    "text": b"hello there\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "huge header": REQUEST[:-2] + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    "many headers": REQUEST[:-2] + b"X: y\r\n" * 20_000 + b"\r\n",
    "huge target": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "bad length": REQUEST[:-2] + b"Content-Length: -1\r\n\r\n",
    "two lengths": REQUEST[:-2] + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "bad chunk": CHUNKED + b"zz\r\n",
    "bad chunk later": CHUNKED + b"1\r\nx\r\nzz\r\n" * 100,
    "bad chunk, quick answer": CHUNKED.replace(b"/metrics", b"/-/healthy") + b"zz\r\n",
    "bad second": REQUEST + b"\x00\xff" * 100,
    "websocket": REQUEST[:-2] + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "h2c": REQUEST[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    "h2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "connect": b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "expect": REQUEST[:-2] + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    "surrogates": b"GET /%ed%b2%80%ff HTTP/1.1\r\nHost: \xff\r\nAccept: \xff\xfe;q=\xff\r\n\r\n",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage(served: Served, garbage: bytes) -> None:
    with served.connect() as sock, suppress(ConnectionResetError, BrokenPipeError):
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
        assert answer[:9] in (b"HTTP/1.1 ", b"")


def test_garbage_after_the_answer(served: Served) -> None:
    """The rest of a body may be garbage and arrive after the response was sent."""
    sized = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    for head, status in ((sized, b"200"), (CHUNKED.replace(b"/metrics", b"/-/healthy"), b"411")):
        for rest in (b"zz\r\n", b"5\r\nhello\r\n0\r\n\r\n" + b"\x00" * 10, b"hello" + REQUEST):
            with served.connect() as sock, suppress(OSError):
                sock.sendall(head)
                assert sock.recv(65536).startswith(b"HTTP/1.1 " + status)
                sock.sendall(rest)
                sock.shutdown(socket.SHUT_WR)
                read_all(sock)


def test_no_file_is_leaked(served: Served) -> None:
    scrape(served)
    eventually(lambda: served.connections == 0)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        sock = served.connect()
        sock.sendall((REQUEST, REQUEST[:7], b"\x00")[number % 3])
        reset(sock)
    eventually(lambda: served.connections == 0)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_garbage_is_said_once_a_minute(
    served: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(5):
        with served.connect() as sock:
            sock.sendall(b"\x00\r\n\r\n")
            read_all(sock)
    (record,) = said(caplog.records)
    assert (record.name, record.levelno) == ("kprobe_exporter.web", logging.WARNING)
    assert record.getMessage() == INVALID
    assert capfd.readouterr() == ("", "")


def test_complaints(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complain = server._Complaints(clock=lambda: now)
    complain("a")
    complain("b", ValueError("why"))
    now = 59.9
    complain("a")
    now = 60.0
    complain("a")
    assert [record.getMessage() for record in caplog.records] == ["a", "b: ValueError('why')", "a"]


class Slow(Served):
    """A server whose snapshot waits for ``go``."""

    def __init__(self) -> None:
        super().__init__(app_of(self.snapshot))
        self.entered = threading.Event()
        self.go = threading.Event()

    def snapshot(self) -> Snapshot:
        self.entered.set()
        assert self.go.wait(patience(10))
        return Snapshot((), ())


def test_health_answers_while_every_worker_waits() -> None:
    with serving(Slow()) as slow, ExitStack() as stack:
        for number in range(20):
            asked = REQUEST.replace(b"/metrics", b"/metrics?name[]=kprobe_%d" % number)
            stack.enter_context(slow.connect()).sendall(asked)
        assert slow.entered.wait(patience(10))
        with slow.connect() as sock:
            sock.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
            assert read_all(sock).endswith(b"healthy\n")
        slow.go.set()


def test_what_comes_before_the_answer_is_not_read() -> None:
    with serving(Slow()) as slow, slow.connect() as sock:
        sock.sendall(REQUEST)
        assert slow.entered.wait(patience(10))
        sock.sendall(HEALTH)
        eventually(lambda: any(client.pipelines for client in slow.web._clients._all))
        slow.go.set()
        assert read_all(sock).count(b"HTTP/1.1 200 OK") == 1


def test_close_lets_a_scrape_finish() -> None:
    with serving(Slow()) as slow, slow.connect() as sock:
        sock.sendall(REQUEST)
        assert slow.entered.wait(patience(10))
        closing = threading.Thread(target=slow.web.close)
        closing.start()
        eventually(lambda: slow.web._clients.closing)
        slow.go.set()
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK\r\n")
        closing.join(patience(10))


def test_close_is_bounded(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GRACE", 0.3)
    with serving(Slow()) as slow, ExitStack() as stack:
        silent, scraper = (stack.enter_context(slow.connect()) for _ in range(2))
        scraper.sendall(REQUEST)
        assert slow.entered.wait(patience(10))
        with within(2):
            slow.web.close()
        assert not slow.web._thread.is_alive()
        assert read_all(silent) == b""
        assert read_all(scraper).startswith(b"HTTP/1.1 503 ")
        slow.go.set()
    assert [record for record in caplog.records if record.exc_info] == []


def test_close_does_not_wait_for_who_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GRACE", 0.3)
    with serving(large()) as served, served.connect() as sock:
        sock.sendall(REQUEST * 8)
        sock.recv(1)
        with within(2):
            served.web.close()
        assert not served.web._thread.is_alive()


def test_close_frees_the_port_and_can_be_repeated() -> None:
    with serving(large()) as served:
        scrape(served)
        for _ in range(2):
            served.web.close()
        for sock in listen(served.web.addresses):
            sock.close()


def test_close_without_start() -> None:
    served = large()
    served.web.close()
    served.web.close()
    with pytest.raises(ConnectionRefusedError):
        served.connect()


def test_close_straight_after_start() -> None:
    for _ in range(5):
        served = large()
        served.web.start()
        served.web.close()
        assert not served.web._thread.is_alive()
        assert served.errors == []


async def fail(*_: object, **__: object) -> None:
    raise OSError("broken")


def test_the_end_of_the_thread_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    served = large()
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_server", fail)
    served.web.start()
    served.web._thread.join(patience(10))
    assert [str(found) for found in served.errors] == ["broken"]
    served.web.close()


def test_a_bug_in_the_application_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: Request) -> Response:
        raise KeyError("bug")

    with serving(Served(broken)) as served, served.connect() as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 500 ")
    (record,) = said(caplog.records)
    assert record.getMessage() == "cannot answer /: KeyError('bug')"
    assert not record.exc_info


@pytest.mark.parametrize("close", [reset, socket.socket.close])
def test_a_connection_that_ended_is_freed_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, close: Callable[[socket.socket], None]
) -> None:
    """Each has much memory, above all with TLS: neither a timer nor a circle of references may hold it."""
    made: list[weakref.ref[Connection]] = []
    connection_made = Connection.connection_made

    def noting(self: Connection, transport: asyncio.BaseTransport) -> None:
        made.append(weakref.ref(self))
        connection_made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", noting)
    gc.disable()
    try:
        for _ in range(3):
            sock = served.connect()
            sock.sendall(HEALTH)
            while b"healthy" not in sock.recv(65536):
                pass
            close(sock)
        assert len(made) == 3
        eventually(lambda: [one for one in made if one() is not None] == [])
    finally:
        gc.enable()
