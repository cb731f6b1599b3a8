"""The collector that a log line names."""

from typing import Any

import pytest

from kprobe_exporter.export.otlp.settings import OtlpSettings, collector_of


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
