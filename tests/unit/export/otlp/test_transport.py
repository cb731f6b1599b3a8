"""The transport: the answers say how many items were taken, and the settings reach the SDK."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import StartError
from kprobe_exporter.export.otlp import over_grpc, over_http
from kprobe_exporter.export.otlp.retry import NotTaken, RequestOutcome, Retries, accepted
from kprobe_exporter.export.otlp.settings import OtlpSettings, Signal, protocol_of, timeout_of
from kprobe_exporter.export.otlp.transport import QUIET, Transport, connect
from tests.support.acls import let_another_write
from tests.support.otlp_services import SERVICES, Service

SIGNALS: tuple[Signal, ...] = ("logs", "traces", "metrics")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


class FakeExporter:
    """An exporter whose requests get the outcome ``answer(items)``; None if they cannot be encoded."""

    def __init__(
        self, answer: Callable[[Sequence[int]], RequestOutcome | None], attempts: Retries | None = None
    ) -> None:
        self.answer = answer
        self.attempts = attempts or Retries()
        self.requests: list[list[int]] = []

    def export(self, items: Sequence[int]) -> None:
        if (answer := self.answer(items)) is None:
            raise ValueError("cannot be encoded")
        self.requests.append(list(items))
        if not self.attempts.run(lambda *_: answer, 1):
            raise NotTaken

    def transport(self, clock: Callable[[], float] = time.monotonic) -> Transport:
        return Transport("logs", OtlpSettings(), self, self.attempts, clock=clock)


@given(st.sets(st.integers(0, 99)))
def test_what_cannot_be_encoded_is_told_from_what_can(bad: set[int]) -> None:
    exporter = FakeExporter(lambda items: None if bad & set(items) else RequestOutcome(True))
    assert exporter.transport().export(range(100)) == 100 - len(bad)
    assert sorted(n for request in exporter.requests for n in request) == sorted(set(range(100)) - bad)


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
    exporter = FakeExporter(lambda _: answer)
    assert exporter.transport().export(range(10)) == taken
    assert len(exporter.requests) == 1


def test_the_log_stays_short(caplog: pytest.LogCaptureFixture) -> None:
    """A collector that fails every other request for an hour causes few and short log records."""
    now = 0.0
    answers = iter([RequestOutcome(False, "x" * 10_000), RequestOutcome(True)] * 1800)
    transport = FakeExporter(lambda _: next(answers)).transport(lambda: now)
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

    exporter = FakeExporter(lambda _: RequestOutcome(True), Retries(300, lambda: now, wait, lambda *_: 1.0))
    transport = exporter.transport(lambda: now)

    def export(items: Sequence[int]) -> None:
        if not exporter.attempts.run(lambda *_: answer(items), 10):
            raise NotTaken

    exporter.export = export  # type: ignore[method-assign]
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


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_settings_reach_the_exporter(signal: Signal, protocol: Any) -> None:
    settings = OtlpSettings("http://collector:1234/", protocol, {"X-Token": "t"}, 2.5, "gzip")
    exporter = connect(signal, settings)._exporter
    if protocol == "grpc":
        assert exporter._endpoint == "collector:1234"
        assert exporter._headers == (("x-token", "t"),)
        assert exporter._timeout == 2.5
        assert exporter._compression is grpc.Compression.Gzip
        assert isinstance(exporter._client, over_grpc.GrpcClient)
    else:
        assert exporter._client._endpoint == f"http://collector:1234/v1/{signal}"
        assert exporter._client._headers["x-token"] == "t"
        assert exporter._client._timeout == 2.5
        assert exporter._compression.value == "gzip"
        assert isinstance(exporter._client._transport._session, over_http.Session)
    exporter.shutdown()


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_the_environment_says_the_rest(
    signal: Signal, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=b")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "7500")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", protocol)
    exporter = connect(signal, OtlpSettings())._exporter
    if protocol == "grpc":
        assert (exporter._endpoint, exporter._headers, exporter._timeout) == ("general:1", (("a", "b"),), 7.5)
    else:
        assert exporter._client._endpoint == f"http://general:1/v1/{signal}"
        assert exporter._client._headers["a"] == "b"
        assert exporter._client._timeout == 7.5
    exporter.shutdown()


def test_milliseconds_of_the_signal_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "7500")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", " 250 ")
    assert timeout_of("logs", OtlpSettings()) == 0.25
    assert timeout_of("traces", OtlpSettings()) == 7.5
    assert timeout_of("traces", OtlpSettings(timeout=3)) == 3
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "")
    assert timeout_of("traces", OtlpSettings()) is None


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
        (OtlpSettings(protocol="grpc"), {"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}, "cannot be set up"),
    ],
)
def test_what_can_never_work(
    settings: OtlpSettings, environment: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StartError, match=sentence):
        connect("logs", settings)


@pytest.mark.parametrize("name", ["certificate", "client_certificate", "client_key"])
def test_files_that_another_user_may_write(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pem"
    file.touch()
    let_another_write(file)
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name.upper()}", str(file))
    with pytest.raises(StartError, match=f"otlp.{name}: {file} is not safe: an ACL lets user 54321 write"):
        connect("logs", OtlpSettings("https://127.0.0.1:1"))


def test_a_key_that_every_user_may_read_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "pem"
    file.touch()
    for mode, times in ((0o600, 0), (0o644, 1)):
        file.chmod(mode)
        connect("logs", OtlpSettings("https://127.0.0.1:1", "grpc", client_key=str(file))).close()
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
        transport = connect("logs", settings)
        assert transport.export([]) == 0
        transport.close()


@pytest.mark.parametrize("header", ["a\nb", "é\ud800"])
def test_a_header_that_cannot_be_sent(header: str) -> None:
    """A header that cannot be sent fails the request; the batch is not sent in halves."""
    for protocol in ("http/protobuf", "grpc"):
        settings = OtlpSettings("http://127.0.0.1:1", protocol, {"x": header}, 0.2)
        transport = connect("logs", settings)
        assert transport.export([]) == 0
        assert transport._attempts.answer is not None
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
    answer = over_http._accepted(body)
    assert answer.taken
    assert answer.rejected >= 0


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("rejected", [0, 3])
def test_what_a_response_of_any_signal_rejects(service: Service, rejected: int) -> None:
    response = service.partial(rejected)
    outcome = RequestOutcome(True, "no room" if rejected else "", rejected)
    assert accepted(response) == over_http._accepted(response.SerializeToString()) == outcome


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
transport.connect("logs", settings.OtlpSettings(protocol="http/protobuf"))
print(there())
"""


def test_nothing_is_imported_before_it_is_needed() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "['opentelemetry', 'requests']"]
    assert run.stderr == ""
