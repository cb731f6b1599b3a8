"""Faulty collectors on real sockets: OTLP over HTTP and over gRPC, with a scripted answer to each request."""

import gzip
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tests.support.otlp_services import SERVICES, Service
from tests.support.receivers import free_port

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of 0 s: close() sends RST."""


@dataclass(frozen=True)
class Fault:
    """The answer to one request: an HTTP ``status``, a gRPC ``code``; with neither, the request is accepted.

    ``hang``: no answer before the test ends. ``reset``: the connection is reset. ``rejected``: the number of
    items that are not accepted. ``retry_after``: seconds, sent in the form that the protocol has for it.
    ``drip``: the first bytes of an answer over HTTP, which is followed by a byte every DRIP seconds.
    """

    status: int | None = None
    code: grpc.StatusCode | None = None
    hang: bool = False
    reset: bool = False
    rejected: int = 0
    retry_after: float | None = None
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    drip: bytes | None = None


OK = Fault()

DRIP = 0.05
"""Seconds between two bytes of an answer that drips."""


class Pair:
    """A self-signed certificate for the loopback, and its key, as PEM files."""

    def __init__(self, directory: Path) -> None:
        self.certificate, self.key = str(directory / "certificate.pem"), str(directory / "key.pem")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-nodes", "-days", "2", "-subj", "/CN=collector", "-keyout", self.key]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", self.certificate]
        subprocess.run(command, check=True, capture_output=True)


class Collector:
    """What a faulty collector got. Each signal goes through the list of faults, and repeats the last one.

    ``taken`` are the ids of the spans in the requests that it accepted. ``size`` counts, by signal, what it
    accepted without what it rejected: spans, log records or data points. ``sizes`` and ``headers`` hold those
    of each request, accepted or not, with names in lower case.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.endpoint = ""
        self.over = threading.Event()
        self.times: list[float] = []
        self.taken: list[int] = []
        self.size: Counter[str] = Counter()
        self.sizes: list[int] = []
        self.headers: list[dict[str, str]] = []
        self._faults = {signal: list(faults) for signal in SERVICES}
        self._lock = threading.Lock()

    def next(self, signal: str = "traces", headers: Mapping[str, str] | None = None, size: int = 0) -> Fault:
        """Record a request, and return the fault to answer it with."""
        with self._lock:
            self.times.append(time.monotonic())
            self.sizes.append(size)
            self.headers.append({name.lower(): value for name, value in (headers or {}).items()})
            faults = self._faults[signal]
            return faults.pop(0) if len(faults) > 1 else faults[0]

    def take(self, signal: str, request: Any, rejected: int = 0) -> None:
        service = SERVICES[signal]
        size = service.size(request)
        with self._lock:
            self.size[signal] += min(size, max(0, size - rejected))
            if signal == "traces":
                self.taken += [int.from_bytes(span.span_id) for span in service.items(request)]


@contextmanager
def collector(protocol: str, *faults: Fault, pair: Pair | None = None) -> Iterator[Collector]:
    """Run a collector of this protocol until the context is left. Without faults, nothing listens.

    With ``pair`` it serves TLS with this certificate, and requires the client to present the same one.
    """
    made = Collector(faults)
    if not faults:
        made.endpoint = f"http://127.0.0.1:{free_port()}"
        yield made
        return
    serve = _http if protocol == "http/protobuf" else _resets if faults[0].reset else _grpc
    with serve(made, pair):
        try:
            yield made
        finally:
            made.over.set()


@contextmanager
def slow_peer(exchange: Callable[[socket.socket], object]) -> Iterator[str]:
    """Accept connections, and call ``exchange`` every DRIP seconds for each; yield the address."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client gave up
            while not over.wait(DRIP):
                exchange(connection)

    def accept() -> None:
        with ThreadPoolExecutor() as pool:
            while not over.is_set():
                pool.submit(drip, server.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{address[1]}"
        finally:
            over.set()
            socket.create_connection(address).close()
            thread.join()


@contextmanager
def _http(seen: Collector, pair: Pair | None) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # buffered: an answer is one segment

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                body = gzip.decompress(body)
            signal = self.path.rpartition("/")[2]
            service = SERVICES[signal]
            request = service.request.FromString(body)
            fault = seen.next(signal, dict(self.headers.items()), service.size(request))
            if fault.hang:
                seen.over.wait()
            if fault.drip is not None:
                self.wfile.write(fault.drip)
                with suppress(OSError):  # the client gave up
                    while not seen.over.wait(DRIP):
                        self.wfile.write(b"x")
                        self.wfile.flush()
            if fault.hang or fault.reset or fault.drip is not None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                self.close_connection = True
                return
            if fault.status is None:
                seen.take(signal, request, fault.rejected)
            answer = fault.body
            if answer is None:
                told = Status(message="said why") if fault.status else service.partial(fault.rejected)
                answer = told.SerializeToString()
            self.send_response(fault.status or 200)
            headers = {"content-type": "application/x-protobuf", "content-length": str(len(answer))}
            if fault.retry_after is not None:
                headers["retry-after"] = str(fault.retry_after)
            for name, value in (headers | fault.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Ignore clients that closed the connection, as these tests make them do."""

    with Server(("127.0.0.1", 0), Handler) as server:
        seen.endpoint = f"{'https' if pair else 'http'}://127.0.0.1:{server.server_port}"
        if pair:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pair.certificate)
            context.load_cert_chain(pair.certificate, pair.key)
            context.verify_mode = ssl.CERT_REQUIRED
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _grpc(seen: Collector, pair: Pair | None) -> Iterator[None]:
    def server_of(signal: str, service: Service) -> Any:
        class Servicer:
            def Export(self, request: Any, context: Any) -> Any:
                fault = seen.next(signal, dict(context.invocation_metadata()), service.size(request))
                if fault.hang:
                    seen.over.wait()
                if fault.code is not None:
                    if fault.retry_after is not None:
                        seconds, rest = divmod(fault.retry_after, 1)
                        info = RetryInfo(retry_delay={"seconds": int(seconds), "nanos": int(rest * 1e9)})
                        status = Status(code=fault.code.value[0])
                        status.details.add().Pack(info)
                        trailer = ("grpc-status-details-bin", status.SerializeToString())
                        context.set_trailing_metadata((trailer,))
                    context.abort(fault.code, "said why")
                seen.take(signal, request, fault.rejected)
                return service.partial(fault.rejected)

        return Servicer()

    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        for signal, service in SERVICES.items():
            service.add(server_of(signal, service), server)
        if pair:
            certificate, key = Path(pair.certificate).read_bytes(), Path(pair.key).read_bytes()
            credentials = grpc.ssl_server_credentials([(key, certificate)], certificate, True)
            seen.endpoint = f"https://127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
        else:
            seen.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield
        finally:
            server.stop(0).wait()


@contextmanager
def _resets(seen: Collector, _: Pair | None) -> Iterator[None]:
    """Accept connections, read the first byte of each, and reset it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                connection, _ = server.accept()
                if seen.over.is_set():
                    connection.close()
                    return
                seen.next()
                connection.recv(1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()

        port = server.getsockname()[1]
        seen.endpoint = f"http://127.0.0.1:{port}"
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            seen.over.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()
