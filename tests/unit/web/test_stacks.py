"""The routes of counted stacks over a real server: three forms, of some seconds too, and what is refused."""

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from kprobe_exporter.export.stacks.flame_graph import CONTENT_SECURITY_POLICY
from kprobe_exporter.model.stacks import Profile, Weight
from kprobe_exporter.web import clients
from kprobe_exporter.web.networks import Network
from kprobe_exporter.web.routes import create_app
from kprobe_exporter.web.stacks import MOST_SECONDS, MOST_WAITING
from tests.support.patience import patience
from tests.support.web_target import Served, read_all, serving
from tests.unit.export.conftest import SNAPSHOT


class Stacks(Served):
    """A server of one probe, whose stack is seen once more each time somebody reads it."""

    def __init__(self) -> None:
        self.hits = 0
        self.entered = threading.Semaphore(0)
        super().__init__(create_app(lambda: SNAPSHOT, lambda: None, profile=self.profile))

    def profile(self, name: str) -> Profile | None:
        if name != "a/b":
            return None
        self.hits += 1
        self.entered.release()
        return Profile(name, None, {(b"read", b"main"): Weight(self.hits, 0)}, 0, 1, 1 + self.hits)


@pytest.fixture
def server() -> Iterator[Stacks]:
    with serving(Stacks()) as served:
        yield served


def test_three_forms(server: Stacks) -> None:
    response, body = server.ask("/stacks/a%2Fb")
    assert (response.status, body) == (200, b"main;read 1\n")
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    response, body = server.ask("/stacks/a/b.svg")
    assert (response.status, response.headers["Content-Type"]) == (200, "image/svg+xml")
    assert response.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert b"a/b: kernel stacks by hits" in body
    assert b'<a href="/probe/a%2Fb">' in body
    response, body = server.ask("/debug/pprof/a/b")
    assert (response.status, response.headers["Content-Type"]) == (200, "application/octet-stream")
    assert b"read" in gzip.decompress(body)


def test_the_difference_of_some_seconds(server: Stacks) -> None:
    server.hits = 40
    assert server.ask("/stacks/a/b?seconds=0")[1] == b"main;read 41\n"
    assert server.ask("/stacks/a/b?seconds=1")[1] == b"main;read 1\n"


@pytest.mark.parametrize("seconds", ["-1", "x", "", "1.5", str(MOST_SECONDS + 1), "9" * 5000, "\u0663"])
def test_a_wrong_number_of_seconds(server: Stacks, seconds: str) -> None:
    response, body = server.ask(f"/debug/pprof/a/b?seconds={quote(seconds)}")
    assert (response.status, body) == (400, b"seconds is a whole number up to 20\n")


@pytest.mark.parametrize("path", ["/stacks/b", "/stacks/b.svg", "/debug/pprof/b"])
@pytest.mark.parametrize("query", ["", "?seconds=1"])
def test_a_probe_without_stacks(server: Stacks, path: str, query: str) -> None:
    response, body = server.ask(path + query)
    assert (response.status, body) == (404, b"no probe 'b' counts its stacks: give it `stacks: {}`\n")


def test_those_who_wait_are_few(server: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four at once, two of one network: others are refused at once, and later ones are served again."""
    monkeypatch.setattr(clients, "network", lambda host: Network(host, host))
    first, second, third = "127.0.0.1", "127.0.0.2", "127.0.0.3"
    with ExitStack() as stack:

        def ask(source: str) -> socket.socket:
            sock = stack.enter_context(server.connect(source))
            sock.sendall(b"GET /stacks/a/b?seconds=2 HTTP/1.0\r\n\r\n")
            return sock

        waiting = []
        for source, taken in ((first, 2), (first, 0), (second, 2), (third, 0)):
            for _ in range(taken):
                waiting.append(ask(source))
                assert server.entered.acquire(timeout=patience(10))
            if not taken:
                assert read_all(ask(source))[9:12] == b"429"
        assert len(waiting) == MOST_WAITING
        assert server.ask("/stacks/a/b")[0].status == 200
        assert {read_all(sock)[9:12] for sock in waiting} == {b"200"}
    assert server.ask("/stacks/a/b?seconds=1")[0].status == 200


def test_switched_off() -> None:
    with serving(Served(create_app(lambda: SNAPSHOT, lambda: None))) as served:
        response, body = served.ask("/stacks/a/b")
        assert response.status == 403
        assert body == b"stacks are not served: the agent runs with --web.disable-stacks\n"
