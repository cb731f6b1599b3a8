"""Input at a whole agent's port, and changes of its web configuration, have only the intended effects."""

import json
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import bcrypt
import pytest

from kprobe_exporter.cli import main
from kprobe_exporter.web.clients import MAX_CONNECTIONS
from kprobe_exporter.web.connection import MAX_BODY_BYTES, MAX_HEADER_BYTES
from tests.support.agent_process import AgentProcess, running
from tests.support.certificates import Authority, Pair
from tests.support.patience import eventually, patience
from tests.support.scraped import Scraped, basic, scraped

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"owned()\">&amp;'"
FILE = "<script>alert(1)</script>"
CONFIG = f"""
global: {{tracefs_instance: hostile_web}}
probes:
  - name: open
    help: {json.dumps(HOSTILE)}
    attach: kprobe:do_sys_openat2
    metrics: [{{counter: opens_total, labels: [comm]}}]
  - name: lib
    help: Refused, with a reason that holds what is hostile.
    attach: {json.dumps(f"uprobe:/{FILE}:f")}
"""


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def web_config(password: str) -> str:
    return (
        "tls_server_config: {cert_file: server.pem, key_file: server.key}\n"
        f"basic_auth_users: {{scraper: {hashed(password)}}}\n"
    )


def replace(path: Path, data: bytes) -> None:
    """Replace a file atomically, as programs that renew certificates do."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.rename(path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.issue("server")
    return authority


@pytest.fixture(params=["plain", "TLS"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scraped]:
    text, client = "", None
    if request.param == "TLS":
        authority = request.getfixturevalue("authority")
        text, client = web_config("secret"), ssl.create_default_context(cafile=authority.certificate)
    with scraped(tmp_path, text, client, CONFIG) as agent:
        yield agent


def ask(agent: Scraped, method: str, path: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("localhost", agent.port)
    connection.sock = agent.secure()
    try:
        connection.request(method, path, headers={"Authorization": basic("secret"), **headers})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def status_on(connection: HTTPConnection) -> int:
    """The status of one more request on this connection."""
    connection.request("GET", "/metrics", headers={"Authorization": basic("secret")})
    response = connection.getresponse()
    response.read()
    return response.status


def shown_certificate(agent: Scraped) -> str:
    """The certificate that the agent presents to a new client, trusted or not."""
    return ssl.get_server_certificate(("127.0.0.1", agent.port), timeout=patience(10))


def pem(pair: Pair) -> str:
    text = pair.certificate.read_text()
    return text[text.index("-----BEGIN") :]


def test_new_certificates_and_passwords_are_taken_over(authority: Authority, tmp_path: Path) -> None:
    client = ssl.create_default_context(cafile=authority.certificate)
    with scraped(tmp_path, web_config("secret"), client, CONFIG) as agent:
        first = shown_certificate(agent)
        kept = HTTPConnection("localhost", agent.port)
        kept.sock = agent.secure()
        assert status_on(kept) == 200
        # Another certificate and key of the same authority.
        renewed = authority.issue("renewed")
        for file, source in (("server.pem", renewed.certificate), ("server.key", renewed.key)):
            replace(tmp_path / file, source.read_bytes())
        eventually(lambda: shown_certificate(agent) != first)
        assert shown_certificate(agent) == pem(renewed)
        assert agent.ask()[0] == 200

        replace(tmp_path / "web.yml", web_config("another").encode())
        eventually(lambda: agent.ask("another")[0] == 200)
        assert agent.ask("secret")[0] == 401
        # An open connection keeps its certificate, but its next request needs the new password.
        assert status_on(kept) == 401
        kept.close()

        # A wrong file is reported in one log line, and changes nothing.
        replace(tmp_path / "web.yml", b"basic_auth_user: {scraper: x}\n")
        eventually(lambda: "the old one holds" in agent.agent.output())
        [line] = [line for line in agent.agent.output().splitlines() if "the old one holds" in line]
        assert "web.yml:1:1: " in line
        assert "basic_auth_user" in line
        assert agent.ask("another")[0] == 200
        assert agent.ask("secret")[0] == 401
        assert agent.agent.poll() is None


@pytest.mark.parametrize(
    "text",
    [
        "basic_auth_user: {scraper: x}",
        "tls_server_config: {cert_file: server.pem, key_file: server.key, ciphers: []}",
        "http_server_config: {headers: {Server: x}}",
    ],
)
def test_an_unsupported_key_refuses_the_start(authority: Authority, tmp_path: Path, text: str) -> None:
    """The agent refuses it before it touches tracefs, in one sentence with file, line and column."""
    config, web = tmp_path / "config.yaml", tmp_path / "web.yml"
    config.write_text(CONFIG)
    config.chmod(0o600)
    web.write_text(text + "\n")
    arguments = ["run", "--config", str(config), "--web.config.file", str(web)]
    agent = AgentProcess(
        tmp_path / "log", main, [*arguments, "--web.listen-address", "127.0.0.1:0", "--tracefs", "/nowhere"]
    )
    with running(agent):
        assert agent.wait() == 2
    [line] = agent.output().splitlines()
    assert re.search(r"web\.yml:1:\d+: .*\b(basic_auth_user|ciphers|Server)\b", line), line


def test_requests_that_are_too_large(agent: Scraped) -> None:
    large = "x" * (MAX_HEADER_BYTES // 2)
    for method, path, headers, status in (
        ("GET", "/metrics", {"X-One": large, "X-Two": large}, {400, 431}),
        ("POST", "/-/reload", {"Content-Length": str(MAX_BODY_BYTES + 1)}, {413}),
        ("POST", "/-/reload", {"Transfer-Encoding": "chunked"}, {411}),
    ):
        response, body = ask(agent, method, path, **headers)
        assert response.status in status
        assert len(body) < 100
        assert response.headers["Connection"] == "close"
    assert agent.ask()[0] == 200


def test_a_request_that_never_ends(agent: Scraped) -> None:
    """The server answers 400 or 431, or disconnects, long before it has stored all that is sent."""
    with agent.secure() as endless:
        endless.sendall(b"GET /metrics HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|pipe|EOF|closed|violation"):  # noqa: PT012
            for _ in range(1000):
                endless.sendall(b"X: " + MAX_HEADER_BYTES * b"x" + b"\r\n")
            assert endless.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 431")
            while endless.recv(4096):
                pass
            raise ConnectionError("closed")
    assert agent.ask()[0] == 200


def test_too_many_connections(agent: Scraped) -> None:
    """A scrape is answered nevertheless, and the agent keeps at most MAX_CONNECTIONS of them open."""
    descriptors = Path(f"/proc/{agent.agent.pid}/fd")
    agent.ask()
    own = len(os.listdir(descriptors))
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(agent.connect())
        assert agent.ask()[0] == 200
        eventually(lambda: len(os.listdir(descriptors)) <= own + MAX_CONNECTIONS, 5)
        assert agent.ask()[0] == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/-/ready", "/nowhere"])
def test_head(agent: Scraped, path: str) -> None:
    """HEAD gives the status and headers of GET, without a body."""
    whole, text = ask(agent, "GET", path)
    head, nothing = ask(agent, "HEAD", path)
    assert (head.status, nothing) == (whole.status, b"")
    assert text
    varying = {"content-length", "date"}  # the numbers of the page grow between both requests
    assert {k: v for k, v in head.headers.items() if k.lower() not in varying} == {
        k: v for k, v in whole.headers.items() if k.lower() not in varying
    }
    assert int(head.headers["Content-Length"]) > 0


def test_hostile_text_on_the_status_page(agent: Scraped) -> None:
    """A help text, a file name in a reason and a missing path are escaped or served as plain text."""
    response, body = ask(agent, "GET", "/")
    page = body.decode()
    assert response.status == 200
    assert "&lt;script&gt;document.title=&#x27;owned&#x27;&lt;/script&gt;&lt;img src=x" in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert "<img" not in page
    assert "script-src 'sha256-" in response.headers["Content-Security-Policy"]
    response, body = ask(agent, "GET", "/%3Cscript%3E")
    assert response.status == 404
    assert b"<script>" not in body
    assert response.headers["Content-Type"].startswith("text/plain")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
