"""A whole agent with a large scrape, with or without clients that are idle, slow or guess passwords."""

import base64
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import bcrypt

from kprobe_exporter.agent.serve import ServeOptions
from tests.e2e.conftest import agent_on
from tests.support.agent_process import AgentProcess, running
from tests.support.certificates import Authority
from tests.support.patience import eventually, patience
from tests.support.web_target import client_hello

IDLE = SLOW = 20
GUESSING = 4
HOSTILE = 128
"""As many clients as the agent has connections."""
SAMPLES = 1000

CONFIG = """
global: {tracefs_instance: slow_clients, max_series: 30000, max_series_total: 100000}
probes:
  - name: open
    attach: kprobe:do_sys_openat2
    metrics:
      - {counter: opens_total, help: Opens., labels: {tid: tid}}
      - {gauge: cpu, help: Where., value: cpu, labels: {tid: tid}}
"""


def events(samples: int) -> bytes:
    """Return the text of events that make this many samples, half of each metric."""
    form = b"%16s-%-7d [000] d..1. %5d.%06d: open: (do_sys_openat2+0x0/0xe0)\n"
    return b"".join(form % (b"test", tid, 1, tid) for tid in range(1, samples // 2 + 1))


REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\n\r\n"


def basic(password: str) -> str:
    return f"Basic {base64.b64encode(f'scraper:{password}'.encode()).decode()}"


class Scraped:
    """A running agent, and the means to connect to it."""

    def __init__(self, agent: AgentProcess, port: int, client: ssl.SSLContext | None) -> None:
        self.agent = agent
        self.port = port
        self._client = client

    def connect(self, buffer: int = 0) -> socket.socket:
        """Return a new connection; ``buffer`` bounds the bytes that the kernel receives for it."""
        sock = socket.socket()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.settimeout(patience(10))
        sock.connect(("127.0.0.1", self.port))
        return sock

    def secure(self, buffer: int = 0) -> socket.socket:
        """Return a new connection, over TLS if the agent has it."""
        sock = self.connect(buffer)
        return self._client.wrap_socket(sock, server_hostname="localhost") if self._client else sock

    def ask(self, password: str = "secret") -> tuple[int, bytes]:
        """Scrape on a new connection; return the status and the body."""
        connection = HTTPConnection("localhost", self.port)
        connection.sock = self.secure()
        try:
            connection.request("GET", "/metrics", headers={"Authorization": basic(password)})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def first_words(self) -> bytes:
        """A TLS client's first message; without TLS, a request."""
        if self._client is None:
            return REQUEST % basic("secret").encode()
        return client_hello(self._client)


@contextmanager
def scraped(
    directory: Path,
    web_config: str,
    client: ssl.SSLContext | None,
    text: str = CONFIG,
    samples: int = SAMPLES,
) -> Iterator[Scraped]:
    """Run an agent with this configuration and its files in the directory; its function makes the samples."""
    config, web = directory / "config.yaml", directory / "web.yml"
    config.write_text(text)
    web.write_text(web_config)
    # The test chooses the port, so that it need not read http or https from the log.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]

    options = ServeOptions(listen=[f"127.0.0.1:{port}"], web_config=web)
    agent = agent_on(directory, config, lambda: {"open": events(samples)}, options)
    with running(agent):
        eventually(lambda: "serving metrics at" in agent.output() or agent.poll() is not None)
        assert agent.poll() is None, agent.output()
        yield Scraped(agent, port, client)
    assert "Traceback" not in agent.output()


@contextmanager
def protected(directory: Path, *, tls: bool, samples: int = SAMPLES) -> Iterator[Scraped]:
    """Run an agent that requires a password, perhaps over TLS, and wait until it has all its samples."""
    directory.mkdir()
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
    text = f"basic_auth_users: {{scraper: {hashed}}}\n"
    client = None
    if tls:
        authority = Authority(directory)
        authority.issue("server")
        text += "tls_server_config: {cert_file: server.pem, key_file: server.key}\n"
        client = ssl.create_default_context(cafile=authority.certificate)
    with scraped(directory, text, client, samples=samples) as agent:
        eventually(lambda: agent.ask()[1].count(b"{tid=") == samples)
        yield agent


@contextmanager
def idle_and_slow_clients(agent: Scraped) -> Iterator[Callable[[int], None]]:
    """Half of the idle clients send nothing, half finish the handshake; each call sends slow ones a byte."""
    words, request = agent.first_words(), REQUEST % basic("secret").encode()
    with ExitStack() as stack:
        for number in range(IDLE):
            stack.enter_context(agent.connect() if number % 2 else agent.secure())
        slow = [stack.enter_context(agent.connect()) for _ in range(SLOW // 2)]
        inside = [stack.enter_context(agent.secure()) for _ in range(SLOW // 4)]
        # These clients request more than the buffers hold, and read nothing.
        for _ in range(SLOW - SLOW // 2 - SLOW // 4):
            stack.enter_context(agent.secure(buffer=1)).sendall(request * 4)

        def dribble(number: int) -> None:
            for socks, text in ((slow, words), (inside, request)):
                for sock in socks:
                    with suppress(OSError):  # the server may have timed this client out
                        sock.sendall(text[number % len(text) :][:1])

        yield dribble


@contextmanager
def guessing_clients(agent: Scraped) -> Iterator[list[int]]:
    """Run threads that send wrong passwords at full speed; yield the statuses of the answers."""
    over = threading.Event()
    statuses: list[int] = []

    def guess() -> None:
        while not over.is_set():
            statuses.append(agent.ask("guess")[0])

    guessers = [threading.Thread(target=guess) for _ in range(GUESSING)]
    for guesser in guessers:
        guesser.start()
    try:
        yield statuses
    finally:
        over.set()
        for guesser in guessers:
            guesser.join()


@contextmanager
def hostile_clients(agent: Scraped, requests: int) -> Iterator[None]:
    """Run HOSTILE threads that send so many requests at once, with the password, and drip-read the answer."""
    over = threading.Event()
    request = REQUEST % basic("secret").encode()

    def ask_and_drip() -> None:
        while not over.is_set():
            with suppress(OSError), agent.secure(buffer=4096) as sock:
                sock.sendall(request * requests)
                for _ in range(20):
                    over.wait(0.1)
                    sock.recv(1)

    hostile = [threading.Thread(target=ask_and_drip) for _ in range(HOSTILE)]
    for one in hostile:
        one.start()
    try:
        yield
    finally:
        over.set()
        for one in hostile:
            one.join()
