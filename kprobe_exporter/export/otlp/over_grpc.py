"""OTLP over gRPC: the SDK's exporters, with our own handling of the collector's answers.

The exporters alone treat a partial success as a success, look for a RetryInfo where no server puts it, and
encode the request again for each attempt (opentelemetry/exporter/otlp/proto/grpc/exporter.py, _export). They
take no stub as an argument, so their private ``_client`` is replaced; pyproject.toml names one version.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kprobe_exporter.export.otlp.retry import NotTaken, RequestOutcome, Retries, accepted
from kprobe_exporter.export.otlp.settings import MAX_REQUEST, OtlpSettings, Signal, timeout_of, variable


class GrpcSpanExporter(OTLPSpanExporter):
    """The SDK's exporter for a request that is encoded already."""

    def _translate_data(self, request: bytes) -> ExportTraceServiceRequest:  # type: ignore[override]
        message: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(request)
        return message


EXPORTERS: Mapping[Signal, Callable[..., Any]] = {
    "logs": OTLPLogExporter,
    "traces": GrpcSpanExporter,
    "metrics": OTLPMetricExporter,
}
COMPRESSION = {"gzip": grpc.Compression.Gzip, "none": grpc.Compression.NoCompression, None: None}

RETRYABLE = frozenset("CANCELLED DEADLINE_EXCEEDED ABORTED OUT_OF_RANGE UNAVAILABLE DATA_LOSS".split())
"""The OTLP specification, "Failures". RESOURCE_EXHAUSTED is retryable too, if a RetryInfo comes with it."""

OPTIONS = (
    # With gRPC's defaults, two minutes can pass before it tries to reconnect to a collector.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
)


def exporter(signal: Signal, settings: OtlpSettings, attempts: Retries) -> Any:
    """Create the SDK's exporter of one signal, which takes missing settings from the environment."""
    made = EXPORTERS[signal](
        endpoint=settings.endpoint,
        credentials=_credentials(signal, settings),
        headers={name.lower(): value for name, value in (settings.headers or {}).items()} or None,
        timeout=timeout_of(signal, settings),
        compression=COMPRESSION[settings.compression],
        channel_options=OPTIONS,
    )
    made._client = GrpcClient(made._client, attempts)
    return made


class GrpcClient:
    """Replaces the stub in the SDK's exporter, and retries each request as needed.

    Raises NotTaken, which passes through the exporter: the exporter retries only after a grpc.RpcError.
    """

    def __init__(self, stub: Any, attempts: Retries) -> None:
        self._export = stub.Export
        self._attempts = attempts

    def Export(self, request: Any, metadata: Any, timeout: float) -> None:  # named as in the stub
        if request.ByteSize() > MAX_REQUEST:
            raise ValueError("servers accept no request of this size")

        def once(left: float, empty: bool) -> RequestOutcome:
            sent = type(request)() if empty else request
            try:
                response = self._export(sent, metadata=metadata, timeout=left)
            except grpc.RpcError as error:
                return _refusal(error)
            return accepted(response)

        if not self._attempts.run(once, timeout):
            raise NotTaken


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


def _credentials(signal: Signal, settings: OtlpSettings) -> grpc.ChannelCredentials | None:
    """TLS with the configured files; None if the settings name none. OSError if one cannot be read."""
    written = (settings.certificate, settings.client_key, settings.client_certificate)
    if not any(written):
        return None
    names = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
    files = [file or variable(signal, name) for file, name in zip(written, names, strict=True)]
    return grpc.ssl_channel_credentials(*[Path(file).read_bytes() if file else None for file in files])
