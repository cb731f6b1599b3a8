"""After any bytes from a client, the server serves the next client, and has logged known lines at most."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.web.access import WebSettings
from kprobe_exporter.web.handshake import Tls
from tests.support.certificates import Authority, Pair
from tests.support.patience import eventually
from tests.support.web_target import HASH, SAID, Target, client_hello, read_all, serving


def fuzzed(*words: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(words) | st.binary(max_size=20)


HEADERS = st.tuples(
    fuzzed(b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Upgrade", b"Expect", b"Accept")
    | fuzzed(b"Authorization", b"Accept-Encoding", b"Origin", b"Sec-Fetch-Site", b"Cookie"),
    fuzzed(b"x", b"0", b"5", b"1025", b"9" * 5000, b"chunked", b"close", b"Upgrade", b"websocket", b"h2c")
    | fuzzed(
        b"100-continue", b"*/*;q=nan", b"gzip;q=1e999", b"Basic c2NyYXBlcjpzZWNyZXQ=", b"Basic ", b"null"
    ),
).map(b": ".join)
REQUESTS = st.tuples(
    fuzzed(b"GET", b"HEAD", b"POST", b"PRI", b"CONNECT", b"OPTIONS"),
    fuzzed(b"/", b"/metrics", b"/metrics?name[]=%ff", b"/-/healthy", b"/-/reload", b"*", b"http://x/", b"//"),
    fuzzed(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0"),
    st.lists(HEADERS, max_size=5),
    fuzzed(b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"x" * 2000),
).map(lambda r: b" ".join(r[:3]) + b"\r\nHost: x\r\n" + b"".join(h + b"\r\n" for h in r[3]) + b"\r\n" + r[4])
MESSAGES = st.lists(REQUESTS | st.binary(max_size=300), min_size=1, max_size=4)
CLIENT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
QUICK = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(scope="module", params=["plain", "passwords", "TLS"])
def running(request: pytest.FixtureRequest, authority: Authority, server: Pair) -> Iterator[Target]:
    users = {b"scraper": HASH} if request.param == "passwords" else {}
    tls = client = None
    if request.param == "TLS":
        tls, client = Tls(server.context()), ssl.create_default_context(cafile=authority.certificate)
    with serving(Target(WebSettings(tls, users), client)) as target:
        yield target


@pytest.fixture
def target(
    running: Target, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Iterator[Target]:
    yield running
    assert running.is_well()
    eventually(lambda: not running.web._clients)
    records = [r for r in caplog.get_records("call") if r.name.startswith(("kprobe_exporter", "asyncio"))]
    assert [record.getMessage() for record in records if not record.getMessage().startswith(SAID)] == []
    assert [record for record in records if record.exc_info] == []
    assert capfd.readouterr() == ("", "")


@QUICK
@given(messages=MESSAGES)
def test_what_is_said(target: Target, messages: list[bytes]) -> None:
    """The client sends any messages, ends its side, and gets an HTTP response or a closed connection."""
    with target.secure() as sock, suppress(OSError):
        for message in messages:
            sock.sendall(message)
        if isinstance(sock, ssl.SSLSocket):
            sock.unwrap()  # TLS has no half-closed connections: unread data is lost
        else:
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock, OSError)[:9] in (b"", b"HTTP/1.1 ")


@QUICK
@given(data=st.binary(max_size=600), start=st.integers(0, 600))
def test_what_is_said_instead_of_tls(target: Target, data: bytes, start: int) -> None:
    """Bytes that are not TLS, from any place in the ClientHello on, do no harm."""
    with target.connect() as sock, suppress(OSError):
        sock.sendall(client_hello(CLIENT)[:start] + data)
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)
