"""The application over a real server: routes, methods, compression, and callables that fail."""

import gzip
import logging
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from kprobe_exporter.errors import StartError
from kprobe_exporter.export.listen import listen
from kprobe_exporter.export.server import WebServer
from kprobe_exporter.export.web import check_telemetry_path, create_app
from kprobe_exporter.model import Snapshot
from tests.unit.export.conftest import SNAPSHOT


class Agent:
    """What the application is given, and a client for it."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.error: Exception | None = None
        self.threads: set[str] = set()
        self.port = 0

    def snapshot(self) -> Snapshot:
        self.threads.add(threading.current_thread().name)
        if self.error:
            raise self.error
        return SNAPSHOT

    def ready(self) -> str | None:
        return self.reason

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Agent]:
    agent = Agent()
    errors: list[BaseException] = []
    app = create_app(agent.snapshot, agent.ready, "/probes/metrics")
    web = WebServer(app, listen(["127.0.0.1:0"]), errors.append)
    agent.port = int(web.addresses[0].rpartition(":")[2])
    web.start()
    yield agent
    web.close()
    assert errors == []


@pytest.fixture
def agent(server: Agent) -> Agent:
    server.reason = server.error = None
    return server


def test_metrics(agent: Agent) -> None:
    response, body = agent.ask("/probes/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.headers["Vary"] == "Accept, Accept-Encoding"
    assert int(response.headers["Content-Length"]) == len(body)
    assert b'\nkprobe_hits_total{probe="open"} 23.0\n' in body
    assert agent.threads
    assert all(name.startswith("web_") for name in agent.threads)


def test_openmetrics(agent: Agent) -> None:
    response, body = agent.ask("/probes/metrics", Accept="application/openmetrics-text")
    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")


def test_names(agent: Agent) -> None:
    _, body = agent.ask("/probes/metrics?name[]=kprobe_up&name%5B%5D=kprobe_hits_total")
    assert [line.split(b"{")[0] for line in body.splitlines() if line[:1] != b"#"] == [
        *(b"kprobe_hits_total", b"kprobe_hits_total", b"kprobe_up")
    ]


@pytest.mark.parametrize("path", ["/", "/probes/metrics"])
def test_gzip(agent: Agent, path: str) -> None:
    response, body = agent.ask(path, Accept_Encoding="gzip")
    assert response.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in response.headers["Vary"]
    assert b"kprobe_exporter" in gzip.decompress(body)
    for refusing in ("gzip;q=0", "identity"):
        response, body = agent.ask(path, Accept_Encoding=refusing)
        assert "Content-Encoding" not in response.headers
        assert "Accept-Encoding" in response.headers["Vary"]
        assert b"kprobe_exporter" in body


def test_status_page(agent: Agent) -> None:
    response, body = agent.ask("/")
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none';")
    assert b'<a href="/probes/metrics">' in body


def test_health(agent: Agent) -> None:
    response, body = agent.ask("/-/healthy")
    assert (response.status, body) == (200, b"healthy\n")


def test_readiness(agent: Agent) -> None:
    response, body = agent.ask("/-/ready")
    assert (response.status, body) == (200, b"ready\n")
    agent.reason = "no probe is installed"
    response, body = agent.ask("/-/ready")
    assert (response.status, body) == (503, b"no probe is installed\n")


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/probes/metrics/", "//", "/-/", "/-/reload", "/favicon.ico"),
        *("/probes", "/PROBES/METRICS", "/../etc/passwd", "/%00", "http://example.org/", "*"),
    ],
)
def test_unknown_paths(agent: Agent, path: str) -> None:
    response, body = agent.ask(path)
    assert (response.status, body) == (404, b"Not Found\n")


@pytest.mark.parametrize("path", ["/", "/probes/metrics", "/-/healthy", "/-/ready"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_wrong_methods(agent: Agent, path: str, method: str) -> None:
    response, body = agent.ask(path, method)
    assert (response.status, body) == (405, b"Method Not Allowed\n")
    assert response.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/-/healthy", "/-/ready", "/nowhere"])
def test_head_is_get_without_the_body(agent: Agent, path: str) -> None:
    get, _ = agent.ask(path)
    head, body = agent.ask(path, "HEAD")
    assert body == b""
    assert head.status == get.status
    assert head.headers["Content-Length"] == get.headers["Content-Length"]


def test_head_of_metrics(agent: Agent) -> None:
    head, body = agent.ask("/probes/metrics", "HEAD")
    assert (head.status, body) == (200, b"")
    assert int(head.headers["Content-Length"]) > 1000


@pytest.mark.parametrize("path", ["/", "/probes/metrics", "/-/ready", "/nowhere"])
def test_every_answer_forbids_sniffing(agent: Agent, path: str) -> None:
    response, _ = agent.ask(path)
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" not in response.headers


@pytest.mark.parametrize("path", ["/", "/probes/metrics"])
def test_a_failing_snapshot(agent: Agent, path: str, caplog: pytest.LogCaptureFixture) -> None:
    agent.error = ValueError("two\nlines, and a secret")
    response, body = agent.ask(path)
    assert (response.status, body) == (500, b"something went wrong: see the agent's log\n")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("kprobe_exporter.web", logging.ERROR)
    assert not record.exc_info
    assert record.getMessage() == rf"cannot answer {path}: ValueError('two\nlines, and a secret')"
    agent.error = None
    assert agent.ask(path)[0].status == 200


def test_a_body_on_get_is_ignored(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    response, _ = agent.ask("/probes/metrics", body=b"x" * 300_000)
    assert response.status == 200
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/metrics", "/a", "/kprobe/metrics.txt", "/~x/-_."])
def test_telemetry_paths(path: str) -> None:
    check_telemetry_path(path)


@pytest.mark.parametrize(
    "path", ["", "/", "metrics", "/-/healthy", "/-/x", "/{x}", "/a b", "/a?b", "/é", "/a\n", "/%41"]
)
def test_bad_telemetry_paths(path: str) -> None:
    with pytest.raises(StartError, match=r"^the telemetry path .*such as /metrics$"):
        create_app(lambda: SNAPSHOT, lambda: None, path)
