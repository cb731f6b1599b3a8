"""Basic auth, the rate of requests and the headers of responses, over a real server; allowed host names."""

import asyncio
import base64
import logging
from collections.abc import Iterator

import bcrypt
import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import UsageError
from kprobe_exporter.web.access import NOT_ALLOWED, Access, Rate, WebSettings
from kprobe_exporter.web.clients import Client
from kprobe_exporter.web.messages import Request, Response, answered, credentials, line
from kprobe_exporter.web.routes import create_app
from tests.support.web_target import Served, serving
from tests.unit.export.conftest import SNAPSHOT

USERS = {b"alice": bcrypt.hashpw(b"secret", bcrypt.gensalt(4))}
PATHS = [
    "/",
    "/metrics",
    "/-/healthy",
    "/-/ready",
    "/-/reload",
    "/nowhere",
    "/stacks/p",
    "/stacks/p.svg",
    "/debug/pprof/p",
]


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


class Guarded(Served):
    """A server whose settings a test may replace."""

    def __init__(self) -> None:
        self.settings = WebSettings()
        super().__init__(
            create_app(lambda: SNAPSHOT, lambda: None, reload=lambda: None, settings=lambda: self.settings)
        )


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with serving(Guarded()) as guarded:
        yield guarded


@pytest.fixture
def guarded(server: Guarded) -> Guarded:
    server.settings = WebSettings(users=USERS)
    return server


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_nothing_is_told_to_strangers(guarded: Guarded, path: str, method: str) -> None:
    response, body = guarded.ask(path, method)
    assert (response.status, body) == (401, b"" if method == "HEAD" else b"authentication required\n")
    assert response.headers["WWW-Authenticate"] == 'Basic realm="kprobe_exporter", charset="UTF-8"'
    for wrong in ("alice:guess", "bob:secret", "alice:", ":"):
        response, body = guarded.ask(path, method, Authorization=basic(wrong))
        assert (response.status, body) == (401, b"" if method == "HEAD" else b"wrong user or password\n")
        assert "WWW-Authenticate" in response.headers


@pytest.mark.parametrize(
    ("path", "status"), [*zip(PATHS, [200, 200, 200, 200, 405, 404, 403, 403, 403], strict=True)]
)
def test_users_get_what_there_is(guarded: Guarded, path: str, status: int) -> None:
    for _ in range(2):
        assert guarded.ask(path, Authorization=basic("alice:secret"))[0].status == status


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic ", "Basic !", "Bearer x", "Basic YWxpY2U=", "basic" * 1000, "\xff"]
)
def test_what_says_nothing(guarded: Guarded, header: str) -> None:
    assert guarded.ask(Authorization=header)[1] == b"authentication required\n"


def test_settings_hold_from_the_next_request_on(guarded: Guarded) -> None:
    guarded.settings = WebSettings()
    assert guarded.ask()[0].status == 200
    guarded.settings = WebSettings(users=USERS)
    assert guarded.ask()[0].status == 401


def test_no_password_is_logged(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for header in (basic("alice:secret"), basic("alice:guess"), "Basic !"):
            guarded.ask(Authorization=header)
    assert not [record for record in caplog.records if record.name != "asyncio"]


@pytest.mark.parametrize("path", ["/", "/-/healthy", "/nowhere"])
@pytest.mark.parametrize("users", [{}, USERS])
def test_headers(guarded: Guarded, path: str, users: dict[bytes, bytes]) -> None:
    extra = {"Strict-Transport-Security": "max-age=60", "X-Frame-Options": "sameorigin"}
    guarded.settings = WebSettings(users=users, headers=extra)
    response, _ = guarded.ask(path)
    for name, value in extra.items():
        assert response.headers.get_all(name) == [value]


def test_the_pages_own_policy_stays(guarded: Guarded) -> None:
    policy = {"Content-Security-Policy": "default-src *", "X-Content-Type-Options": "nosniff"}
    guarded.settings = WebSettings(headers=policy)
    response, _ = guarded.ask("/")
    own = response.headers.get_all("Content-Security-Policy") or []
    assert [policy.startswith("default-src 'none'") for policy in own] == [True]
    assert response.headers.get_all("X-Content-Type-Options") == ["nosniff"]
    response, _ = guarded.ask("/-/healthy")
    assert response.headers.get_all("Content-Security-Policy") == ["default-src *"]


def test_the_rate_of_requests(guarded: Guarded) -> None:
    guarded.settings = WebSettings(rate=Rate(3600, 2))
    assert [guarded.ask()[0].status for _ in range(4)] == [200, 200, 429, 429]
    guarded.settings = WebSettings()
    assert guarded.ask()[0].status == 200


def test_another_rate_begins_with_its_burst(guarded: Guarded) -> None:
    for interval in (3600, 1800):
        guarded.settings = WebSettings(rate=Rate(interval, 1))
        assert [guarded.ask()[0].status for _ in range(2)] == [200, 429]


@given(name=st.binary(max_size=50).filter(lambda name: b":" not in name), password=st.binary(max_size=50))
def test_every_name_and_password_comes_through(name: bytes, password: bytes) -> None:
    coded = base64.b64encode(name + b":" + password).decode()
    for scheme in ("Basic", "basic", "BASIC"):
        assert credentials(f"{scheme} {coded}") == (name, password)


@given(st.text(max_size=100) | st.text(max_size=100).map("Basic {}".format))
def test_no_header_is_too_odd(header: str) -> None:
    found = credentials(header)
    assert found is None or b":" not in found[0]


ALLOWED = ("agent.example.com", "Node-1.")


def answer(host: str | None, allowed: tuple[str, ...], target: bytes = b"/metrics") -> tuple[int, bytes]:
    """Return the status and the body for a request with this Host header."""

    async def app(_: Request) -> Response:
        return line("metrics")

    headers = [] if host is None else [(b"host", host.encode())]
    event = h11.Request(method="GET", target=target, headers=headers, http_version="1.0")
    request = Request.from_event(event, Client(asyncio.Transport(), 0))
    response = asyncio.run(answered(Access(app, WebSettings, allowed), request))
    return response.status, response.body


@pytest.mark.parametrize(
    "host",
    [
        *("agent.example.com", "AGENT.example.com.:10435", "node-1:443"),
        *("192.0.2.1:10435", "[2001:db8::1]:10435", "[::1]", "localhost:10435"),
    ],
)
def test_allowed(host: str) -> None:
    assert answer(host, ALLOWED) == (200, b"metrics\n")


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "agent.example.com.evil.example", "evil.example:10435"),
        *("agent.example.com@evil.example", "192.0.2.1.evil.example"),
        *("", None, "[", "[::1", "1", "\u0130"),
    ],
)
def test_a_name_that_resolves_to_the_agent_is_not_enough(host: str | None) -> None:
    """A page of such a site could otherwise read the metrics through a browser inside the network."""
    assert answer(host, ALLOWED) == (421, NOT_ALLOWED.encode() + b"\n")
    assert answer(host, ()) == (200, b"metrics\n")


def test_host_of_an_absolute_target_counts() -> None:
    allowed, other = b"http://agent.example.com:1/metrics", b"http://evil.example/metrics"
    assert answer("evil.example", ALLOWED, allowed) == (200, b"metrics\n")
    assert answer("agent.example.com", ALLOWED, other) == (421, NOT_ALLOWED.encode() + b"\n")
    assert answer("agent.example.com", ALLOWED, b"http://agent.example.com@evil.example/")[0] == 421


@pytest.mark.parametrize("host", ["", "http://agent", "agent:10435", "a b", "*.example.com", "-a"])
def test_what_is_no_host_name(host: str) -> None:
    with pytest.raises(UsageError, match="write the name alone"):
        create_app(lambda: SNAPSHOT, lambda: None, allowed_hosts=[host])
