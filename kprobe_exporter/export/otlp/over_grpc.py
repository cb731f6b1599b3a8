"""OTLP over gRPC: one channel, and the meaning of the collector's answers."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from kprobe_exporter.export.otlp.encode import accepted
from kprobe_exporter.export.otlp.retry import RequestOutcome
from kprobe_exporter.export.otlp.settings import (
    USER_AGENT,
    OtlpSettings,
    Signal,
    compressed,
    files_of,
    headers_of,
    variable,
)

METHODS: Mapping[Signal, str] = {
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}

RETRYABLE = frozenset("CANCELLED DEADLINE_EXCEEDED ABORTED OUT_OF_RANGE UNAVAILABLE DATA_LOSS".split())
"""The OTLP specification, "Failures". RESOURCE_EXHAUSTED is retryable too, if a RetryInfo comes with it."""

OPTIONS = (
    ("grpc.primary_user_agent", USER_AGENT),
    # With gRPC's defaults, two minutes can pass before it tries to reconnect to a collector.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
)


class GrpcLink:
    """The channel of one signal. Requests and answers are bytes: encoded messages."""

    def __init__(self, signal: Signal, settings: OtlpSettings) -> None:
        endpoint = settings.endpoint or variable(signal, "ENDPOINT") or "http://localhost:4317"
        parts = urlsplit(endpoint)
        target = parts.netloc or endpoint
        zipped = compressed(signal, settings)
        compression = grpc.Compression.Gzip if zipped else grpc.Compression.NoCompression
        if _is_plain(signal, parts.scheme):
            self._channel = grpc.insecure_channel(target, OPTIONS, compression)
        else:
            names = ("certificate", "client_key", "client_certificate")
            files = files_of(signal, settings)
            pem = [Path(file).read_bytes() if (file := files[name]) else None for name in names]
            self._channel = grpc.secure_channel(
                target, grpc.ssl_channel_credentials(*pem), OPTIONS, compression
            )
        self._export: Any = self._channel.unary_unary(METHODS[signal])
        self._headers = (*headers_of(signal, settings).items(),)

    def send(self, request: bytes, timeout: float) -> RequestOutcome:
        """Send a request once."""
        try:
            return accepted(self._export(request, timeout, self._headers))
        except grpc.RpcError as error:
            return _refusal(error)

    def close(self) -> None:
        """Close the channel; this ends a request that is under way."""
        self._channel.close()


def _is_plain(signal: Signal, scheme: str) -> bool:
    """Return whether there is no TLS: by the URL, or else by OTEL_EXPORTER_OTLP_INSECURE."""
    insecure = variable(signal, "INSECURE")
    if scheme == "https" or insecure is None:
        return scheme == "http"
    return insecure.lower() == "true"


def _refusal(error: Any) -> RequestOutcome:
    """Convert a gRPC error to an answer. ``error`` is both a grpc.RpcError and a grpc.Call."""
    code, details = error.code(), error.details() or ""
    after = _retry_delay(dict(error.trailing_metadata() or ()))
    asked = code is grpc.StatusCode.RESOURCE_EXHAUSTED and after is not None
    reason = f"{code.name}: {details}" if details else code.name
    late = code is grpc.StatusCode.DEADLINE_EXCEEDED
    return RequestOutcome(False, reason, 0, asked or code.name in RETRYABLE, after, unanswered=late)


def _retry_delay(trailers: Mapping[str, str | bytes]) -> float | None:
    """The seconds of the RetryInfo in the details of a google.rpc.Status; None if there is none."""
    details = trailers.get("grpc-status-details-bin", b"")
    info = RetryInfo()
    with suppress(Exception):  # damaged details count as none
        if any(detail.Unpack(info) for detail in Status.FromString(details).details):
            return max(0.0, float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
    return None
