"""Sessions over HTTPS: a client with a password gets what tools write as they do so; others are refused."""

import base64
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.errors import SessionRefused
from kprobe_exporter.sessions.protocol import Limits, SessionRequest, ToolRequest
from kprobe_exporter.sessions.web_client import Login, WebSessionClient
from kprobe_exporter.web import clients, sessions
from kprobe_exporter.web.access import WebSettings
from kprobe_exporter.web.handshake import Tls
from kprobe_exporter.web.routes import create_app
from kprobe_exporter.web.sessions import ASK, DISABLED, PLAIN
from tests.support.certificates import Authority, Pair
from tests.support.patience import eventually
from tests.support.web_target import HASH, serving
from tests.support.web_target import Served as Web
from tests.unit.export.conftest import SNAPSHOT
from tests.unit.sessions.conftest import Served, all_of, processes, until

USERS = {b"scraper": HASH}
LOGIN = "Basic c2NyYXBlcjpzZWNyZXQ="


class Both:
    """A web server with TLS, users and sessions, and requests to it."""

    def __init__(self, web: Web, served: Served, authority: Pair) -> None:
        self.web, self.served = web, served
        url = f"https://localhost:{web.port}"
        self.login = Login(url, "scraper", "secret", Path(authority.certificate))

    def client(self, how: str = "waits", *, as_json: bool = True, **changes: Any) -> WebSessionClient:
        request = SessionRequest((ToolRequest("killsnoop"),), {"comm": how}, 30, as_json)
        return WebSessionClient(self.login._replace(**changes), request)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Pair]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    return authority, authority.issue("server")


@contextmanager
def both_of(served: Served, pair: tuple[Authority, Pair], **changes: Any) -> Iterator[Both]:
    """Serve with these changes of the web settings."""
    authority, server = pair
    settings = WebSettings(Tls(server.context()), USERS)._replace(**changes)
    app = create_app(lambda: SNAPSHOT, lambda: None, settings=lambda: settings, connect=served.server.connect)
    trusting = ssl.create_default_context(cafile=authority.certificate) if settings.tls else None
    with serving(Web(app, trusting, lambda: settings.tls)) as web:
        yield Both(web, served, authority)


@pytest.fixture
def both(served: Served, pair: tuple[Authority, Pair]) -> Iterator[Both]:
    with both_of(served, pair) as made:
        yield made


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [message["row"]["number"] for message in messages if "row" in message]


def test_rows_come_while_the_tool_runs(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    """And Ctrl-C, a further request, still brings the rest."""
    caplog.set_level(logging.INFO)
    with both.client(as_json=False) as client:
        begun = until(client, lambda one: one.get("text") == "number 2")
        assert [one["text"] for one in begun if "text" in one] == ["number 0", "number 1", "number 2"]
        both.served.wait_for(active=1)
        client.end()
        rest = all_of(client)
    assert [one["text"] for one in rest if "text" in one] == ["the rest"]
    assert rest[-1]["ended"] == "left"
    both.served.wait_for(left=1)
    assert "a session of web user 'scraper', at 127.0.0.1" in caplog.text


def test_a_tool_that_fails(both: Both) -> None:
    with both.client("fails") as client:
        messages = all_of(client)
    assert messages[-1]["ended"] == "failed"


def test_the_client_goes(both: Both, tmp_path: Path) -> None:
    with both.client() as client:
        until(client, lambda one: "row" in one)
    both.served.wait_for(left=1)
    eventually(lambda: processes(tmp_path) == [])
    eventually(lambda: both.web.connections == 0)


@pytest.mark.slow
def test_a_silent_tool_is_waited_for(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than for the client of a usual answer."""
    monkeypatch.setattr(clients, "ANSWER_TIME", 0.5)
    monkeypatch.setattr(sessions, "TURN_S", 0.05)
    with both.client() as client:
        assert numbers(until(client, lambda one: numbers([one]) == [2])) == [0, 1, 2]
        began = time.monotonic()
        while time.monotonic() < began + 2.5:  # the server looks for clients to drop once a second
            assert not client.has_some(0.5)
        client.end()
        assert all_of(client)[-1]["ended"] == "left"


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_dropped(
    both: Both, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clients, "ANSWER_TIME", 2)
    with both.client("floods", as_json=False):
        both.served.wait_for(left=1)
        eventually(lambda: processes(tmp_path) == [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"password": "guess"}, "answers 401: wrong user or password"),
        ({"user": "nobody"}, "answers 401: wrong user or password"),
        ({"ca": None}, "cannot be asked: its certificate is not trusted"),
    ],
)
def test_a_wrong_login(both: Both, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SessionRefused, match=words), both.client(**changes) as client:
        all_of(client)
    assert both.served.results() == {}


@pytest.mark.parametrize("url", ["http://localhost:1", "localhost:1", "https://", "https://localhost:1/path"])
def test_a_wrong_address(both: Both, url: str) -> None:
    with pytest.raises(SessionRefused, match="write https://HOST:PORT of the agent"):
        WebSessionClient(both.login._replace(url=url), SessionRequest((), {}, 1))


def test_nobody_listens(both: Both) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
    with pytest.raises(SessionRefused, match="cannot be asked: Connection refused"):
        WebSessionClient(both.login._replace(url=f"https://localhost:{port}"), SessionRequest((), {}, 1))


def asked(both: Both, query: str, method: str = "POST", site: str = "none") -> tuple[int, str]:
    where = f"/-/session{query}"
    response, body = both.web.ask(where, method, Authorization=LOGIN, Sec_Fetch_Site=site)
    return response.status, body.decode().strip()


def test_requests_that_are_none(both: Both) -> None:
    assert asked(both, "") == (400, ASK)
    assert asked(both, "?request=1&request=2") == (400, ASK)
    assert asked(both, "?request=1", "GET")[0] == 405
    assert asked(both, "?request=1", site="same-origin")[0] == 403
    status, text = asked(both, "?request=1")
    assert (status, json.loads(text)["refused"]) == (
        200,
        "the request is not of version 1: use the kprobe-exporter of the agent's version.",
    )
    status, text = asked(both, "?request=%7B%0A")
    assert json.loads(text)["refused"] == "the request is not JSON."


@pytest.mark.parametrize("changes", [{"tls": None}, {"users": {}}])
def test_without_tls_or_a_password_it_is_refused(
    served: Served, pair: tuple[Authority, Pair], changes: dict[str, Any]
) -> None:
    with both_of(served, pair, **changes) as both:
        assert asked(both, "?request=1") == (403, PLAIN)


def test_they_are_off_by_default() -> None:
    with serving(Web(create_app(lambda: SNAPSHOT, lambda: None))) as web:
        response, body = web.ask("/-/session?request=1", "POST", Authorization=LOGIN)
    assert (response.status, body.decode().strip()) == (403, DISABLED)


def test_a_name_of_a_user_forges_no_line(
    served: Served, pair: tuple[Authority, Pair], caplog: pytest.LogCaptureFixture
) -> None:
    coded = base64.b64encode(b"a\nb:secret").decode()
    with both_of(served, pair, users={b"a\nb": HASH}) as both:
        _, body = both.web.ask("/-/session?request=1", "POST", Authorization=f"Basic {coded}")
    assert b"refused" in body
    [said] = [text for text in caplog.messages if "is refused" in text]
    assert said.startswith("a session of web user 'a\\nb', at 127.0.0.1")
    assert "\n" not in said


def test_the_budget_is_shared(serve: Callable[[Limits], Served], pair: tuple[Authority, Pair]) -> None:
    """With the sessions at the socket."""
    served = serve(Limits(max_tools=1))
    with both_of(served, pair) as both, served.ask():
        served.wait_for(active=1)
        client = both.client()
        with client, pytest.raises(SessionRefused, match="1 tool of other sessions run"):
            all_of(client)
