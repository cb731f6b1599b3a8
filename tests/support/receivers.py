"""Real OTLP receivers from other projects, for tests: Elastic's mockotlpserver, and rotel."""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import randrange
from typing import Any

import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tests.support import npm
from tests.support.patience import eventually

SOURCE = Path(__file__).parents[1] / "mockotlpserver"
INSTALLED = Path(__file__).parents[2] / "build/mockotlpserver"


def install() -> None:
    """Install mockotlpserver below build/. Raises PackageError."""
    npm.install(SOURCE)


def needs_mock_server() -> None:
    """Skip a test without mockotlpserver; under CI it fails instead."""
    if shutil.which("node") and npm.is_installed(SOURCE):
        return
    if os.environ.get("CI"):
        pytest.fail(f"there is no node, or {INSTALLED} is not what {SOURCE} says")
    pytest.skip("no mockotlpserver: `make test` fetches it")


def free_port() -> int:
    """Return a port of the loopback on which nothing listens.

    It is below those that the kernel gives to connections, one of which could take the port while its server
    is away, or connect to itself.
    """
    above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = randrange(above // 2, above)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class MockServer:
    """A running mockotlpserver. ``endpoints`` are by protocol; it keeps the requests in order.

    A request is kept before it is answered, so none is lost if the ``process`` is killed.
    """

    def __init__(self, endpoints: Mapping[str, str], process: "subprocess.Popen[str]") -> None:
        self.endpoints = endpoints
        self.process = process
        self._requests: list[tuple[str, Any]] = []

    def be_busy(self, seconds: int) -> None:
        """Refuse requests from now on, and ask clients to come again after some seconds."""
        status = Status(code=14)
        status.details.add().Pack(RetryInfo(retry_delay={"seconds": seconds}))
        self._answer({"busy": {"seconds": seconds, "status": status.SerializeToString().hex()}})

    def reject(self, items: int) -> None:
        """Say from now on that so many items of each request are rejected, up to 127. They are kept."""
        self._answer({"rejects": items})

    def accept(self) -> None:
        """Accept requests again."""
        self._answer({})

    def _answer(self, fault: Mapping[str, Any]) -> None:
        assert self.process.stdin
        print(json.dumps(fault), file=self.process.stdin, flush=True)

    def got(self, signal: str, request: Any) -> None:
        self._requests.append((signal, request))

    def requests(self, signal: str) -> list[Any]:
        return [request for found, request in list(self._requests) if found == signal]

    def spans(self) -> list[Any]:
        return self._items("traces", "Spans", "spans")

    def log_records(self) -> list[Any]:
        return self._items("logs", "Logs", "logRecords")

    def metrics(self) -> list[Any]:
        return self._items("metrics", "Metrics", "metrics")

    def _items(self, signal: str, of: str, items: str) -> list[Any]:
        """Return the items that arrived. A request whose client went away is an empty one."""
        return [
            item
            for request in self.requests(signal)
            for resource in request.get(f"resource{of}", ())
            for scope in resource[f"scope{of}"]
            for item in scope[items]
        ]


def attributes(thing: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a resource, span, log record or data point; integers are text, as in OTLP's JSON."""
    found: dict[str, Any] = {}
    for pair in thing.get("attributes", ()):
        # An empty AnyValue has no value. gRPC's loader adds the name of the oneof as another key.
        values = [value for key, value in pair["value"].items() if key != "value"]
        found[pair["key"]] = values[0] if values else None
    return found


@contextmanager
def mock_server(http: int = 0, grpc: int = 0) -> Iterator[MockServer]:
    """Run mockotlpserver on these ports, 0 for any, until the context is left."""
    command = ["node", str(SOURCE / "server.js"), str(http), str(grpc)]
    environment = {**os.environ, "NODE_PATH": str(INSTALLED / "node_modules")}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )
    with process:
        assert process.stdout
        assert process.stdin
        ready = json.loads(process.stdout.readline())
        server = MockServer({"http/protobuf": ready["http"], "grpc": ready["grpc"]}, process)

        def read() -> None:
            assert process.stdout
            for line in process.stdout:
                if line.endswith("\n"):  # a killed process may leave a part of a line
                    told = json.loads(line)
                    server.got(told["signal"], told["request"])

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield server
        finally:
            process.terminate()  # the end of stdin may not reach it: agents that were forked have the pipe
            reader.join()


class Rotel:
    """A running rotel that prints what it gets and stores nothing. ``endpoints`` are by protocol."""

    def __init__(self, endpoints: Mapping[str, str], log: Path, process: "subprocess.Popen[bytes]") -> None:
        self.endpoints = endpoints
        self.process = process
        self._log = log

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def found(self, pattern: str) -> list[str]:
        """The text of the pattern's one group, for each line that matches except for blanks at its ends."""
        return re.findall(rf"(?m)^\s*{pattern}\s*$", self.output())


@contextmanager
def rotel(directory: Path, http: int = 0, grpc: int = 0, *, verbose: bool = True) -> Iterator[Rotel]:
    """Run rotel on these ports, 0 for any, until the context is left; it appends to a log in the directory.

    Unless ``verbose``, it prints nothing of what it gets.
    """
    package = importlib.util.find_spec("rotel")
    assert package
    assert package.origin
    http, grpc = http or free_port(), grpc or free_port()
    command = [str(Path(package.origin).with_name("rotel-agent")), "start", "--exporter", "blackhole"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
    if verbose:
        for signal in ("traces", "logs", "metrics"):
            command += ["--debug-log", signal]
        command += ["--debug-log-verbosity", "detailed"]
    log = directory / "rotel.log"
    with log.open("a") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            eventually(lambda: process.poll() is None and _listens(http) and _listens(grpc), 30)
            endpoints = {"http/protobuf": f"http://127.0.0.1:{http}", "grpc": f"http://127.0.0.1:{grpc}"}
            yield Rotel(endpoints, log, process)
        finally:
            process.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
