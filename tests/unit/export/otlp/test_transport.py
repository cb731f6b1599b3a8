"""The transport: the answers say how many items were taken, and the settings reach the collector."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter

from kprobe_exporter import __version__
from kprobe_exporter.errors import StartError
from kprobe_exporter.export.otlp import over_grpc, over_http
from kprobe_exporter.export.otlp.encode import accepted
from kprobe_exporter.export.otlp.retry import RequestOutcome, Retries
from kprobe_exporter.export.otlp.settings import (
    MAX_REQUEST,
    OtlpSettings,
    Signal,
    protocol_of,
    timeout_of,
)
from kprobe_exporter.export.otlp.transport import QUIET, Transport, connect
from tests.support.acls import let_another_write
from tests.support.otlp_faults import OK, collector
from tests.support.otlp_services import SERVICES, Service

SIGNALS: tuple[Signal, ...] = ("logs", "traces", "metrics")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


class FakeLink:
    """A link whose requests get the outcome ``answer(items)``. A request with one of ``bad`` has no encoding.

    An item is a byte.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[int]], RequestOutcome],
        attempts: Retries | None = None,
        bad: Collection[int] = (),
    ) -> None:
        self.answer = answer
        self.attempts = attempts or Retries()
        self.bad = set(bad)
        self.requests: list[bytes] = []

    def encode(self, items: Sequence[int]) -> bytes:
        if self.bad & set(items):
            raise ValueError("cannot be encoded")
        return bytes(items)

    def send(self, request: bytes, timeout: float) -> RequestOutcome:
        self.requests.append(request)
        return self.answer(request)

    def close(self) -> None:
        pass

    def transport(self, clock: Callable[[], float] = time.monotonic) -> Transport:
        return Transport("logs", OtlpSettings(), self, self.attempts, self.encode, clock=clock)


def taking(_: object) -> RequestOutcome:
    return RequestOutcome(True)


@given(st.sets(st.integers(0, 99)))
def test_what_cannot_be_encoded_is_told_from_what_can(bad: set[int]) -> None:
    link = FakeLink(taking, bad=bad)
    assert link.transport().export(range(100)) == 100 - len(bad)
    assert sorted(b"".join(link.requests)) == sorted(set(range(100)) - bad)


def test_large_requests_sent_in_halves() -> None:
    link = FakeLink(taking)
    sizes = [MAX_REQUEST, 1, MAX_REQUEST + 1, 1]  # one item is too large by itself
    link.encode = lambda items: bytes(sum(items))  # type: ignore[method-assign]
    assert link.transport().export(sizes) == 3
    assert [len(request) for request in link.requests] == [MAX_REQUEST, 1, 1]


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        (RequestOutcome(True), 10),
        (RequestOutcome(True, "two of them", rejected=2), 8),
        (RequestOutcome(True, rejected=11), 0),
        (RequestOutcome(False, "no"), 0),
    ],
)
def test_how_many_were_taken(answer: RequestOutcome, taken: int) -> None:
    link = FakeLink(lambda _: answer)
    assert link.transport().export(range(10)) == taken
    assert len(link.requests) == 1


def test_the_log_stays_short(caplog: pytest.LogCaptureFixture) -> None:
    """A collector that fails every other request for an hour causes few and short log records."""
    now = 0.0
    answers = iter([RequestOutcome(False, "x" * 10_000), RequestOutcome(True)] * 1800)
    transport = FakeLink(lambda _: next(answers)).transport(lambda: now)
    with caplog.at_level(logging.INFO, "kprobe_exporter"):
        for _ in range(3600):
            transport.export([1])
            now += 1
    assert len(caplog.records) <= 2 * 3600 / QUIET
    assert max(len(record.getMessage()) for record in caplog.records) < 500


def test_the_log_says_that_items_wait(caplog: pytest.LogCaptureFixture) -> None:
    """A collector is away for half a minute, takes a batch, and is away for longer than items are kept."""
    now = 0.0

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    def answer(_: object) -> RequestOutcome:
        away = now < 30 or now > 100
        return RequestOutcome(False, "Connection refused", retry=True) if away else RequestOutcome(True)

    link = FakeLink(answer, Retries(300, lambda: now, wait, lambda *_: 1.0))
    transport = link.transport(lambda: now)
    with caplog.at_level(logging.INFO, "kprobe_exporter"):
        assert transport.export([1, 2]) == 2
        now = 101
        assert transport.export([1, 2]) == 0
    place = "by the collector at localhost:4318"
    assert [record.getMessage() for record in caplog.records] == [
        "logs wait for the collector at localhost:4318: Connection refused",
        f"logs are taken again {place}",
        "logs wait for the collector at localhost:4318: Connection refused",
        f"2 of 2 logs were not taken {place}: Connection refused",
    ]


def request_of(signal: Signal) -> bytes:
    request: bytes = SERVICES[signal].request().SerializeToString()
    return request


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_settings_reach_the_collector(signal: Signal, protocol: Any) -> None:
    with collector(protocol, OK) as seen:
        settings = OtlpSettings(f"{seen.endpoint}/", protocol, {"X-Token": "t"}, 2.5, "gzip")
        transport = connect(signal, settings, lambda _: request_of(signal))
        assert transport.export([1, 2]) == 2
        transport.close()
    assert transport._timeout == 2.5
    assert seen.headers[0]["x-token"] == "t"
    assert seen.headers[0]["user-agent"].startswith(f"kprobe_exporter/{__version__}")


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("own", [False, True])
def test_the_environment_says_the_rest(
    signal: Signal, protocol: Any, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=b%20c,X-Other=d e, z=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "7500")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with collector(protocol, OK) as seen:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1" if own else seen.endpoint)
        if own:  # for HTTP, the whole URL
            path = f"/elsewhere/{signal}" if protocol != "grpc" else ""
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", seen.endpoint + path)
        transport = connect(signal, OtlpSettings(headers={"Z": "2"}), lambda _: request_of(signal))
        assert transport.export([1]) == 1
        transport.close()
    assert transport._timeout == 7.5
    [headers] = seen.headers
    assert [headers[name] for name in ("a", "x-other", "z")] == ["b c", "d e", "2"]


@pytest.mark.parametrize(
    ("endpoint", "variable", "plain"),
    [
        ("http://c:1", None, True),
        ("https://c:1", None, False),
        ("c:1", None, False),
        ("c:1", "true", True),
        ("c:1", "False", False),
        ("http://c:1", "false", False),
        ("https://c:1", "true", False),
    ],
)
def test_grpc_without_tls(
    endpoint: str, variable: str | None, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the SDK's exporter decides."""
    if variable is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", variable)
    exporter = OTLPLogExporter(endpoint=endpoint)
    exporter.shutdown()
    assert over_grpc._is_plain("logs", urlsplit(endpoint).scheme) is exporter._insecure is plain


def test_milliseconds_of_the_signal_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "7500")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", " 250 ")
    assert timeout_of("logs", OtlpSettings()) == 0.25
    assert timeout_of("traces", OtlpSettings()) == 7.5
    assert timeout_of("traces", OtlpSettings(timeout=3)) == 3
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "")
    assert timeout_of("traces", OtlpSettings()) == 10


def test_http_is_the_default() -> None:
    assert protocol_of("logs", OtlpSettings()) == "http/protobuf"


@pytest.mark.parametrize(
    ("settings", "environment", "sentence"),
    [
        (OtlpSettings("collector:4317"), {}, "write http:// or https:// before it"),
        (OtlpSettings(certificate="/no/ca"), {}, "otlp.certificate: /no/ca cannot be read: No such"),
        (OtlpSettings(protocol="grpc", client_key="/no/key"), {}, "otlp.client_key: /no/key cannot be"),
        (OtlpSettings(), {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/ca"}, "/nowhere/ca cannot be read"),
        (OtlpSettings(), {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "set it to http/protobuf or grpc"),
        *(
            (
                OtlpSettings(protocol=protocol),
                {f"OTEL_EXPORTER_OTLP_{name}": value},
                f"OTLP_{name} is not a num",
            )
            for protocol in ("grpc", "http/protobuf")
            for name, value in (("TIMEOUT", "soon"), ("TIMEOUT", "0"), ("LOGS_TIMEOUT", "1e3"))
        ),
        *(
            (
                OtlpSettings(protocol=protocol),
                {f"OTEL_EXPORTER_OTLP_{name}": value},
                f"OTLP_{name} has a blank or",
            )
            for protocol in ("grpc", "http/protobuf")
            for name in ("ENDPOINT", "LOGS_ENDPOINT")
            for value in ('"http://c:1"', "'http://c:1", "http://c:1 ", "\thttp://c:1", "http://c:1\n", " ")
        ),
        *(
            (
                OtlpSettings(),
                {"OTEL_EXPORTER_OTLP_ENDPOINT": value},
                "OTEL_EXPORTER_OTLP_ENDPOINT has no scheme",
            )
            for value in ("collector:4318", "collector", "//collector", "grpc://collector:4317")
        ),
        *(
            (
                OtlpSettings(protocol=protocol),
                {f"OTEL_EXPORTER_OTLP_{name}": "zip"},
                f"OTLP_{name} is not supported: set it to gzip or none",
            )
            for protocol in ("grpc", "http/protobuf")
            for name in ("COMPRESSION", "LOGS_COMPRESSION")
        ),
        (OtlpSettings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}, "ENDPOINT is not a URL"),
        (OtlpSettings("http://[::1", "grpc"), {}, "otlp.endpoint is not a URL"),
    ],
)
def test_what_can_never_work(
    settings: OtlpSettings, environment: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartError, match=sentence):
        connect("logs", settings, bytes)


@pytest.mark.parametrize("name", ["certificate", "client_certificate", "client_key"])
def test_files_that_another_user_may_write(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pem"
    file.touch()
    let_another_write(file)
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name.upper()}", str(file))
    with pytest.raises(StartError, match=f"otlp.{name}: {file} is not safe: an ACL lets user 54321 write"):
        connect("logs", OtlpSettings("https://127.0.0.1:1"), bytes)


def test_a_key_that_every_user_may_read_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "pem"
    file.touch()
    for mode, times in ((0o600, 0), (0o644, 1)):
        file.chmod(mode)
        connect("logs", OtlpSettings("https://127.0.0.1:1", "grpc", client_key=str(file)), bytes).close()
        assert (
            caplog.text.count(f"otlp.client_key: every user of this machine may read {file}: chmod") == times
        )


def test_files_of_certificates_may_be_anything(tmp_path: Path) -> None:
    """The agent runs with invalid certificate files: only the handshake shows what is wrong in them."""
    file = tmp_path / "pem"
    file.write_bytes(b"\xff\x00 no certificate")
    name = str(file)
    for protocol in ("http/protobuf", "grpc"):
        settings = OtlpSettings("https://127.0.0.1:1", protocol, None, 0.2, None, name, name, name)
        transport = connect("logs", settings, bytes)
        assert transport.export([]) == 0
        transport.close()


@pytest.mark.parametrize("header", ["a\nb", "é\ud800"])
def test_a_header_that_cannot_be_sent(header: str) -> None:
    """A header that cannot be sent fails the request; the batch is not sent in halves."""
    for protocol in ("http/protobuf", "grpc"):
        settings = OtlpSettings("http://127.0.0.1:1", protocol, {"x": header}, 0.2)
        transport = connect("logs", settings, bytes)
        assert transport.export([]) == 0
        assert not transport._attempts.answer.taken
        transport.close()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("0", 0),
        ("1.5", 1.5),
        ("-3", 0),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("", None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    assert over_http._seconds(text) == seconds


def test_retry_after_a_date() -> None:
    seconds = over_http._seconds(formatdate(time.time() + 100, usegmt=True))
    assert seconds is not None
    assert 98 < seconds <= 100


@given(st.text())
def test_any_retry_after(text: str) -> None:
    seconds = over_http._seconds(text)
    assert seconds is None or seconds >= 0


@given(st.text(), st.binary())
def test_any_message(content_type: str, body: bytes) -> None:
    for one in (content_type, "application/x-protobuf"):
        assert isinstance(over_http._message(one, body), str)


@given(st.binary())
def test_any_body_of_a_success(body: bytes) -> None:
    answer = accepted(body)
    assert answer.taken
    assert answer.rejected >= 0


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("rejected", [0, 3])
def test_what_a_response_of_any_signal_rejects(service: Service, rejected: int) -> None:
    response = service.partial(rejected)
    outcome = RequestOutcome(True, "no room" if rejected else "", rejected)
    assert accepted(response.SerializeToString()) == outcome


def retry_info(seconds: int, nanos: int) -> bytes:
    status = Status(code=8)
    status.details.add().Pack(Status(message="another detail"))
    status.details.add().Pack(RetryInfo(retry_delay={"seconds": seconds, "nanos": nanos}))
    done: bytes = status.SerializeToString()
    return done


@pytest.mark.parametrize(
    ("trailers", "seconds"),
    [
        ({}, None),
        ({"grpc-status-details-bin": b""}, None),
        ({"grpc-status-details-bin": b"\xff"}, None),
        ({"grpc-status-details-bin": Status(code=8).SerializeToString()}, None),
        ({"grpc-status-details-bin": retry_info(2, 500_000_000)}, 2.5),
        ({"grpc-status-details-bin": retry_info(0, 0)}, 0),
        ({"grpc-status-details-bin": retry_info(-5, 0)}, 0),
    ],
)
def test_retry_info(trailers: dict[str, bytes], seconds: float | None) -> None:
    assert over_grpc._retry_delay(trailers) == seconds


@given(st.binary())
def test_any_details(details: bytes) -> None:
    delay = over_grpc._retry_delay({"grpc-status-details-bin": details})
    assert delay is None or delay >= 0


IMPORTS = """
import sys
from kprobe_exporter.export.otlp import channel, settings, transport
def there(): return sorted({"opentelemetry", "requests", "grpc"} & set(sys.modules))
print(there())
transport.connect("logs", settings.OtlpSettings(protocol="http/protobuf"), bytes)
print(there())
"""


def test_nothing_is_imported_before_it_is_needed() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "['opentelemetry', 'requests']"]
    assert run.stderr == ""
