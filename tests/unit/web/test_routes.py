"""The application over a real server: routes, methods, limits, reload, compression, failing callables."""

import gzip
import logging
import socket
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import combinations

import pytest

from kprobe_exporter.errors import StartError, one_line
from kprobe_exporter.model.snapshot import Snapshot
from kprobe_exporter.web.routes import check_telemetry_path, create_app
from tests.support.patience import patience
from tests.support.web_target import Served, read_all, serving
from tests.unit.export.conftest import SNAPSHOT


class Agent(Served):
    """A server, and the callables that its application gets."""

    def __init__(self) -> None:
        super().__init__(create_app(self.snapshot, self.ready, "/probes/metrics", reload=self.reload))
        self.reason: str | None = None
        self.error: Exception | None = None
        self.why_not: str | None = None
        self.threads: set[str] = set()
        self.reloads = self.at_once = self._reloading = 0
        self.entered = threading.Event()
        self.slow: threading.Event | None = None

    def snapshot(self) -> Snapshot:
        self.threads.add(threading.current_thread().name)
        if self.error:
            raise self.error
        return SNAPSHOT

    def ready(self) -> str | None:
        return self.reason

    def reload(self) -> str | None:
        self.threads.add(threading.current_thread().name)
        if self.error:
            raise self.error
        self.reloads += 1
        self._reloading += 1
        self.at_once = max(self.at_once, self._reloading)
        self.entered.set()
        assert self.slow is None or self.slow.wait(patience(10))
        self._reloading -= 1
        return self.why_not


@pytest.fixture(scope="module")
def server() -> Iterator[Agent]:
    with serving(Agent()) as agent:
        yield agent


@pytest.fixture
def agent(server: Agent) -> Agent:
    server.reason = server.error = server.why_not = server.slow = None
    server.reloads = server.at_once = 0
    server.entered.clear()
    return server


def test_metrics(agent: Agent) -> None:
    response, body = agent.ask("/probes/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.headers["Vary"] == "Accept, Accept-Encoding"
    assert int(response.headers["Content-Length"]) == len(body)
    assert b'\nkprobe_hits_total{probe="open"} 23.0\n' in body
    assert agent.threads
    assert all(name.startswith(("web_", "reload_")) for name in agent.threads)


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


def test_gzip_in_a_second_header(agent: Agent) -> None:
    head = b"GET /probes/metrics HTTP/1.0\r\nAccept-Encoding: deflate\r\nAccept-Encoding: gzip\r\n\r\n"
    with agent.secure() as sock:
        sock.sendall(head)
        assert b"\r\ncontent-encoding: gzip\r\n" in read_all(sock).lower()


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
def test_absolute_targets(agent: Agent, scheme: str) -> None:
    """A proxy sends them (RFC 9112, 3.2.2)."""
    for path in ("/-/healthy", "/probes/metrics?name[]=kprobe_up", "", "/%2d/healthy", "/nowhere"):
        response, body = agent.ask(f"{scheme}://agent.example:1{path}")
        expected, same = agent.ask(path or "/")
        assert (response.status, len(body)) == (expected.status, len(same))
    assert agent.ask(f"{scheme}:///-/healthy")[0].status == 404
    assert agent.ask("ftp://agent.example/-/healthy")[0].status == 404


def test_status_page(agent: Agent) -> None:
    response, body = agent.ask("/")
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none';")
    assert b'<a href="/probes/metrics">' in body


def test_probe_page(agent: Agent) -> None:
    response, body = agent.ask("/probe/open")
    assert response.status == 200
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none';")
    assert b"<h2>open</h2>" in body


def test_page_of_an_unknown_probe(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    response, body = agent.ask("/probe/opem")
    assert (response.status, body) == (404, b"there is no probe 'opem'; the nearest are 'open'\n")
    assert caplog.records == []


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
        *("/metrics", "/probes/metrics/", "//", "/-/", "/-/reload/", "/favicon.ico"),
        *("/probes", "/PROBES/METRICS", "/../etc/passwd", "/%00", "http://example.org/metrics", "*"),
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


@pytest.mark.parametrize("path", ["/", "/probes/metrics", "/-/healthy"])
def test_a_small_body_on_get_is_ignored(agent: Agent, caplog: pytest.LogCaptureFixture, path: str) -> None:
    response, _ = agent.ask(path, body=b"x" * 1024)
    assert response.status == 200
    assert caplog.records == []


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize("path", ["/probes/metrics", "/-/reload", "/nowhere"])
def test_bodies_over_1_kib_are_refused(agent: Agent, method: str, path: str) -> None:
    response, _ = agent.ask(path, method, body=b"x" * 1025)
    assert (response.status, response.headers["Connection"]) == (413, "close")
    assert agent.reloads == 0


def test_bodies_of_no_known_length_are_refused(agent: Agent) -> None:
    response, body = agent.ask("/-/reload", "POST", Transfer_Encoding="chunked")
    assert (response.status, body) == (411, b"say how long the body is: Content-Length\n")


def test_headers_over_16_kib_are_refused(agent: Agent) -> None:
    """Headers that arrive in one piece are read before their size is known, and are refused as well."""
    many = {f"X-{number}": "y" * 1000 for number in range(20)}
    assert agent.ask("/-/healthy", "GET", None, **many)[0].status in (400, 431)
    assert agent.ask("/-/healthy", "GET", None, **dict(list(many.items())[:10]))[0].status == 200


def test_reload(agent: Agent) -> None:
    response, body = agent.ask("/-/reload", "POST")
    assert (response.status, agent.reloads) == (200, 1)
    [probe] = [probe for probe in SNAPSHOT.probes if probe.state == "down"]
    name = one_line(probe.name)
    told = [f"reloaded; 1 of 2 probes are up; down: {name}", f"{name}: {one_line(probe.reason)}"]
    assert body.decode().splitlines() == told
    assert all(name.startswith(("web_", "reload_")) for name in agent.threads)


def test_a_reload_that_fails_says_why(agent: Agent) -> None:
    agent.why_not = "a.yaml:1:1: probes: there is no probe"
    response, body = agent.ask("/-/reload", "POST")
    assert (response.status, body) == (500, b"a.yaml:1:1: probes: there is no probe\n")
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_a_reload_with_a_bug(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    agent.error = KeyError("bug")
    response, body = agent.ask("/-/reload", "POST")
    assert (response.status, body) == (500, b"something went wrong: see the agent's log\n")
    assert caplog.messages == ["cannot answer /-/reload: KeyError('bug')"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS"])
def test_reload_is_asked_for_by_post(agent: Agent, method: str) -> None:
    response, _ = agent.ask("/-/reload", method)
    assert (response.status, response.headers["Allow"], agent.reloads) == (405, "POST", 0)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://rebound.example:10435", "Host": "rebound.example:10435"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none", "Origin": "http://evil.example"},
        {"Origin": ""},
    ],
)
def test_a_web_page_cannot_reload(agent: Agent, headers: dict[str, str]) -> None:
    """A form or a fetch() of a web page sends one of these headers, without a preflight request."""
    response, body = agent.ask("/-/reload", "POST", body=b"a=b", **headers)
    assert (response.status, body, agent.reloads) == (403, b"a web page may not ask for this\n", 0)


def test_reloads_come_one_after_the_other(agent: Agent) -> None:
    agent.slow = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(agent.ask, "/-/reload", "POST") for _ in range(8)]
        assert agent.entered.wait(patience(10))
        # Reloads that wait do not delay the responses to other clients.
        assert agent.ask("/probes/metrics")[0].status == 200
        agent.slow.set()
        assert [one.result()[0].status for one in asked] == [200] * 8
    assert (agent.reloads, agent.at_once) == (8, 1)


def test_reload_is_off_by_default() -> None:
    with serving(Served(create_app(lambda: SNAPSHOT, lambda: None))) as served:
        response, body = served.ask("/-/reload", "POST")
        assert (response.status, body) == (
            403,
            b"Lifecycle API is not enabled: start the agent with --web.enable-lifecycle.\n",
        )
        assert served.ask("/-/reload")[0].status == 405


@pytest.mark.parametrize("path", ["/metrics", "/a", "/kprobe/metrics.txt", "/~x/-_."])
def test_telemetry_paths(path: str) -> None:
    check_telemetry_path(path)


@pytest.mark.parametrize(
    "path", ["", "/", "metrics", "/-/healthy", "/-/x", "/{x}", "/a b", "/a?b", "/é", "/a\n", "/%41"]
)
def test_bad_telemetry_paths(path: str) -> None:
    with pytest.raises(StartError, match=r"^the telemetry path .*such as /metrics$"):
        create_app(lambda: SNAPSHOT, lambda: None, path)


class Busy(Served):
    """A server whose snapshots wait for ``turns``, so that its 2 workers can be kept busy."""

    def __init__(self) -> None:
        super().__init__(create_app(self._snapshot, lambda: None))
        self.snapshots = 0
        self.turns = threading.Semaphore(0)
        """Each release lets one snapshot go on."""
        self.begun = threading.Semaphore(0)
        self.clients = ExitStack()

    def _snapshot(self) -> Snapshot:
        self.snapshots += 1
        self.begun.release()
        assert self.turns.acquire(timeout=patience(10))
        return SNAPSHOT

    def go_on(self) -> None:
        self.turns.release(1000)

    def send(self, path: str, headers: str = "", source: str = "127.0.0.1") -> socket.socket:
        """Send a request, and return its connection once the server has read the request."""
        sock = self.clients.enter_context(self.connect(source))
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{headers}\r\n".encode())
        self.catch_up()
        return sock

    def catch_up(self) -> None:
        """Wait until the event loop has seen all that clients did."""
        for _ in range(2):
            self.get("/-/ready")


@pytest.fixture
def busy() -> Iterator[Busy]:
    """A server whose 2 workers are busy, each with a rendering of its own."""
    with serving(Busy()) as busy, busy.clients:
        for number in range(2):
            busy.send(f"/metrics?name[]=kprobe_{number}")
        assert all(busy.begun.acquire(timeout=patience(10)) for _ in range(2))
        yield busy
        busy.go_on()


def test_one_rendering_answers_all_that_wait_for_it(busy: Busy) -> None:
    clients = [busy.send("/metrics") for _ in range(20)]
    busy.go_on()
    answers = {read_all(client).partition(b"\r\n\r\n")[2] for client in clients}
    assert len(answers) == 1
    assert b'\nkprobe_hits_total{probe="open"} 23.0\n' in answers.pop()
    assert busy.snapshots == 2 + 1


def test_it_answers_with_and_without_gzip_and_is_compressed_once(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressions = []

    def compress(body: bytes, **options: int) -> bytes:
        compressions.append(body)
        return zlib.compress(body, wbits=zlib.MAX_WBITS | 16)

    monkeypatch.setattr("kprobe_exporter.web.rendering.gzip.compress", compress)
    zipped = [busy.send("/metrics", "Accept-Encoding: gzip\r\n") for _ in range(3)]
    plain = busy.send("/metrics")
    busy.go_on()
    bodies = {gzip.decompress(read_all(client).partition(b"\r\n\r\n")[2]) for client in zipped}
    assert bodies == {read_all(plain).partition(b"\r\n\r\n")[2]} == set(compressions)
    assert (len(compressions), busy.snapshots) == (1, 2 + 1)


def test_a_client_that_has_gone_costs_no_compression(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("kprobe_exporter.web.rendering.gzip.compress")
    busy.send("/metrics", "Accept-Encoding: gzip\r\n").close()
    busy.catch_up()
    going_on = busy.send("/metrics")
    busy.go_on()
    assert read_all(going_on).startswith(b"HTTP/1.1 200")
    assert busy.snapshots == 2 + 1


def test_a_rendering_starts_after_all_its_requests(busy: Busy) -> None:
    """The two under way began before this request, so none of them answers it, though one is the same."""
    again = busy.send("/metrics?name[]=kprobe_0")
    busy.go_on()
    assert read_all(again).startswith(b"HTTP/1.1 200")
    assert busy.snapshots == 2 + 1


def test_no_work_is_done_for_clients_that_have_gone(busy: Busy) -> None:
    for number in range(20):
        busy.send(f"/metrics?name[]=gone_{number}").close()
    busy.catch_up()
    going_on = busy.send("/metrics")
    busy.go_on()
    assert read_all(going_on).startswith(b"HTTP/1.1 200")
    assert busy.snapshots == 2 + 1


def test_a_client_that_has_not_sent_its_body_has_not_gone(busy: Busy) -> None:
    waiting = busy.send("/metrics", "Content-Length: 5\r\n")
    busy.go_on()
    assert waiting.recv(12) == b"HTTP/1.1 200"
    assert busy.snapshots == 2 + 1


CROWD = 120
"""Connections of one client, of the 128 that a server keeps."""

SAMPLES = [
    *("kprobe_up", "kprobe_hits_total", "kprobe_opens_total", "kprobe_empty_total"),
    *(
        f"kprobe_{name}_{suffix}"
        for name in ("duration_seconds", "balance")
        for suffix in ("bucket", "sum", "count")
    ),
]
PROBES = [f"/probe/{number}" for number in range(CROWD)]


def test_unknown_names_share_a_rendering(busy: Busy) -> None:
    """A client asks on many connections for a different name on each, and a name of all of them is new."""
    busy.turns.release(3)
    assert busy.get("/metrics?name[]=kprobe_up")  # the names are known from here on
    crowd = [busy.send(f"/metrics?name[]=unknown_{number}") for number in range(CROWD)]
    up = busy.send("/metrics?name[]=unknown_0&name[]=kprobe_up")
    new = busy.send("/metrics?name[]=kprobe_exporter_scrape_duration_seconds")
    before = busy.snapshots
    busy.go_on()
    assert {read_all(client)[:15] for client in crowd} == {b"HTTP/1.1 200 OK"}
    assert b'kprobe_up{probe="open"} 1.0' in read_all(up)
    assert b"kprobe_exporter_scrape_duration_seconds " in read_all(new)
    assert busy.snapshots <= before + 3


SUBSETS = ["&name[]=".join(some) for size in (1, 2, 3) for some in combinations(SAMPLES, size)][:CROWD]


@pytest.mark.parametrize("paths", [[f"/metrics?name[]={subset}" for subset in SUBSETS], PROBES])
def test_networks_take_turns(busy: Busy, paths: list[str]) -> None:
    """A client asks for something else on each of 120 connections; a scrape waits for one of them at most."""
    busy.turns.release(3)
    assert busy.get("/metrics?name[]=kprobe_up")  # the names are known from here on
    assert busy.begun.acquire(timeout=patience(10))
    crowd = [busy.send(path, source="127.0.0.2") for path in paths]
    scrape = busy.send("/metrics")
    assert all(busy.begun.acquire(timeout=patience(10)) for _ in range(2))
    for _ in range(6):
        busy.turns.release()
        assert busy.begun.acquire(timeout=patience(10))
    assert read_all(scrape).startswith(b"HTTP/1.1 200 OK")
    busy.go_on()
    assert {read_all(client)[:8] for client in crowd} == {b"HTTP/1.1"}


def test_stacks_do_not_delay_scrapes() -> None:
    """Three clients ask for stacks whose names are still looked up."""
    begun, going_on = threading.Semaphore(0), threading.Event()

    def profile(_: str) -> None:
        begun.release()
        assert going_on.wait(patience(10))

    app = create_app(lambda: SNAPSHOT, lambda: None, profile=profile)
    with serving(Served(app)) as served, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(served.ask, f"/stacks/{name}") for name in "abc"]
        assert begun.acquire(timeout=patience(10))
        for _ in range(10):
            assert served.ask("/metrics")[0].status == 200
        going_on.set()
        assert {one.result()[0].status for one in asked} == {404}
