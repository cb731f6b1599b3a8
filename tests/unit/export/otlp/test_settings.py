"""A log line names the collector; and no message quotes a secret, wherever it stands.

A secret may be in a header, a URL, a proxy, or a variable that is not for it.
"""

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import StartError
from kprobe_exporter.export.otlp.resource import resource
from kprobe_exporter.export.otlp.retry import RequestOutcome, Retries
from kprobe_exporter.export.otlp.settings import REMOVED, OtlpSettings, collector_of, redaction
from kprobe_exporter.export.otlp.transport import Transport
from tests.support.otlp_spans import connect_traces, spans
from tests.support.patience import patience

SECRET = "s3cr3t"
HERE = "http://127.0.0.1:1"
PEM = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"
NAMES = "HEADERS TRACES_HEADERS PROTOCOL TIMEOUT COMPRESSION CLIENT_KEY CERTIFICATE INSECURE".split()
URLS = [
    f"http://user:{SECRET}@127.0.0.1:1",
    f"http://{SECRET}@127.0.0.1:1",
    f"http://user:{SECRET}@127.0.0.1:99999",
    f"http://user:{SECRET}/x@127.0.0.1:1",
    f"http://user:x/{SECRET}@127.0.0.1:1",
    f"http://user:x%20{SECRET}@127.0.0.1:1",
    f"http://user:{SECRET} x@127.0.0.1:1",
    f"http://user:{SECRET}@[::1",
    f"htxp://user:{SECRET}@127.0.0.1:1",
    f"user:{SECRET}@127.0.0.1:1",
]
VALUES = [
    f"Authorization Bearer {SECRET}",
    f"a=b,{SECRET}",
    f"a=b,={SECRET}",
    f"a={SECRET}%0Ax",
    f"a={SECRET}\n",
    f"a=Bearer%20{SECRET}%00",
    f"a=\N{SNOWMAN}{SECRET}",
]
HEADERS = [f"Bearer {SECRET}\nx", f"Bearer {SECRET}\N{SNOWMAN}", f" {SECRET}", f"{SECRET}\0"]

ENVIRONMENTS = [
    *({"OTEL_EXPORTER_OTLP_ENDPOINT": url} for url in URLS),
    *({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url} for url in URLS[:2]),
    *({"http_proxy": url, "OTEL_EXPORTER_OTLP_ENDPOINT": HERE} for url in URLS),
    *({"ALL_PROXY": url, "OTEL_EXPORTER_OTLP_ENDPOINT": HERE} for url in URLS[:4]),
    *({"OTEL_EXPORTER_OTLP_HEADERS": value, "OTEL_EXPORTER_OTLP_ENDPOINT": HERE} for value in VALUES),
    *({"OTEL_RESOURCE_ATTRIBUTES": value, "OTEL_EXPORTER_OTLP_ENDPOINT": HERE} for value in VALUES),
    *({f"OTEL_EXPORTER_OTLP_{name}": PEM, "OTEL_EXPORTER_OTLP_ENDPOINT": HERE} for name in NAMES),
]

Told = Callable[[], str]


@pytest.fixture
def told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Told:
    """Return a function that gives every message so far, of any library, logged or written."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "kprobe_exporter")

    def messages() -> str:
        written = capfd.readouterr()
        return caplog.text + written.out + written.err

    return messages


def send(settings: OtlpSettings) -> str:
    """Start an export, and send something; return the sentence if that is refused."""
    resource()
    try:
        transport = connect_traces(settings)
    except StartError as error:
        return str(error)
    assert transport.export(spans([1, 2])) == 0
    transport.close()
    return ""


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_of_the_environment(
    environment: dict[str, str], protocol: Any, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        if "\0" not in value:
            monkeypatch.setenv(name, value)
    sentence = send(OtlpSettings(protocol=protocol, timeout=0.1))
    messages = sentence + told()
    assert messages
    assert SECRET not in messages


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("header", HEADERS, ids=repr)
def test_of_a_header(header: str, protocol: Any, told: Told) -> None:
    sentence = send(OtlpSettings(HERE, protocol, {"authorization": header}, 0.1))
    messages = sentence + told()
    assert "were not taken" in messages
    assert SECRET not in messages


def test_without_a_protocol_a_variable_that_is_for_another_purpose(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", SECRET)
    assert "set it to http/protobuf or grpc" in (sentence := send(OtlpSettings(HERE)))
    assert SECRET not in sentence + told()


def test_the_entry_of_a_list_that_is_wrong_is_named_by_its_number(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", f"a=b,{SECRET}")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"a=b,,{SECRET}")
    send(OtlpSettings(HERE, timeout=0.1))
    messages = told()
    assert "entry 2 of OTEL_EXPORTER_OTLP_TRACES_HEADERS is not a NAME=VALUE: it is ignored" in messages
    assert "entry 3 of OTEL_RESOURCE_ATTRIBUTES is not a KEY=VALUE: it is ignored" in messages


def test_what_a_collector_says_is_shown_without_the_token(told: Told) -> None:
    """It may quote what it refuses."""
    settings = OtlpSettings(HERE, headers={"authorization": f"Bearer {SECRET}"})

    class Refusing:
        def send(self, request: bytes, timeout: float) -> RequestOutcome:
            return RequestOutcome(False, f"401: the token {SECRET} is not known")

        def close(self) -> None:
            pass

    Transport("traces", settings, Refusing(), Retries(), bytes).export([1])
    assert f"401: the token {REMOVED} is not known" in told()


def test_a_short_value_is_no_secret() -> None:
    redact = redaction("traces", OtlpSettings(headers={"x-scope-orgid": "1", "a": "the"}))
    assert redact("the 1st of the 12") == "the 1st of the 12"


def test_a_long_text_takes_linear_time() -> None:
    """A collector may answer with 64 KiB."""
    redact, begun = redaction("traces", OtlpSettings()), time.thread_time()
    assert redact("x" * (1 << 16)) == "x" * (1 << 16)
    assert time.thread_time() - begun < patience(0.1)


@given(st.text(min_size=4).filter(lambda text: "*" not in text), st.text(), st.text())
def test_whatever_a_header_holds(secret: str, before: str, after: str) -> None:
    redact = redaction("traces", OtlpSettings(headers={"a": secret}))
    assert secret not in redact(f"{before} {secret} {after}")


@pytest.mark.parametrize(
    ("endpoint", "protocol", "named"),
    [
        (None, "http/protobuf", "localhost:4318"),
        (None, "grpc", "localhost:4317"),
        ("https://user:password@otel.example/a/token", "http/protobuf", "otel.example"),
        ("http://[2001:db8::1]:4318", "http/protobuf", "[2001:db8::1]:4318"),
        ("otel.example:4317", "grpc", "otel.example:4317"),
        ("http://otel.example:port", "http/protobuf", "otlp.endpoint"),
    ],
)
def test_the_collector_is_named_by_its_host_and_port(
    endpoint: str | None, protocol: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collector_of("logs", OtlpSettings(endpoint, protocol)) == named
    if endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", endpoint)
        assert collector_of("logs", OtlpSettings(protocol=protocol)) == named
