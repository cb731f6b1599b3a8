"""OTLP over gRPC: the SDK's exporters, with every answer of the collector read by us.

By themselves they take a partial success for a success, look for a RetryInfo where no server puts it,
and encode all anew at each attempt (opentelemetry/exporter/otlp/proto/grpc/exporter.py, _export).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from kprobe_exporter.export.otlp.answers import MAX_REQUEST, partial
from kprobe_exporter.export.otlp.attempts import Answer, Attempts, NotTaken
from kprobe_exporter.export.otlp.settings import Settings, Signal, variable

EXPORTERS: Mapping[Signal, Callable[..., Any]] = {
    "logs": OTLPLogExporter,
    "traces": OTLPSpanExporter,
    "metrics": OTLPMetricExporter,
}
COMPRESSION = {"gzip": grpc.Compression.Gzip, "none": grpc.Compression.NoCompression, None: None}

RETRYABLE = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""The OTLP specification's, "Failures". RESOURCE_EXHAUSTED is another if a RetryInfo comes with it."""

OPTIONS = (
    # gRPC's own would let two minutes pass until it looks whether a collector is back.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
)


class TooLarge(Exception):
    """A request that servers refuse for its size; nothing was sent."""


def exporter(signal: Signal, settings: Settings, attempts: Attempts) -> Any:
    """The SDK's exporter of one signal; what the settings leave out it takes from the environment."""
    made = EXPORTERS[signal](
        endpoint=settings.endpoint,
        credentials=_credentials(signal, settings),
        headers={name.lower(): value for name, value in settings.headers.items()}
        if settings.headers
        else None,
        timeout=settings.timeout,
        compression=COMPRESSION[settings.compression],
        channel_options=OPTIONS,
    )
    made._client = Client(signal, made._client, attempts)
    return made


class Client:
    """Stands where the SDK's exporter has its stub: sends as often as it takes.

    Raises NotTaken, which the exporter lets through: it tries again after a grpc.RpcError only.
    """

    def __init__(self, signal: Signal, stub: Any, attempts: Attempts) -> None:
        self._signal = signal
        self._export = stub.Export
        self._attempts = attempts

    def Export(self, request: Any, metadata: Any, timeout: float) -> None:  # the stub's name
        if request.ByteSize() > MAX_REQUEST:
            raise TooLarge

        def once(left: float) -> Answer:
            try:
                response = self._export(request, metadata=metadata, timeout=left)
            except grpc.RpcError as error:
                return _refusal(error)
            return partial(self._signal, response)

        if not self._attempts.run(once, timeout):
            raise NotTaken


def _refusal(error: Any) -> Answer:
    """What an error of gRPC means. ``error`` is both a grpc.RpcError and a grpc.Call."""
    code, details = error.code(), error.details() or ""
    after = _retry_delay(dict(error.trailing_metadata() or ()))
    asked = code is grpc.StatusCode.RESOURCE_EXHAUSTED and after is not None
    reason = f"{code.name}: {details}" if details else code.name
    return Answer(False, reason, retry=asked or code in RETRYABLE, after=after)


def _retry_delay(trailers: Mapping[str, str | bytes]) -> float | None:
    """The seconds of a RetryInfo, which comes among the details of a google.rpc.Status."""
    details = trailers.get("grpc-status-details-bin", b"")
    info = RetryInfo()
    try:
        found = any(detail.Unpack(info) for detail in Status.FromString(details).details)
    except Exception:  # damaged: as if it were not there
        return None
    delay: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    return max(0.0, delay) if found else None


def _credentials(signal: Signal, settings: Settings) -> grpc.ChannelCredentials | None:
    """TLS with our files, None if the settings name none. OSError if one cannot be read."""
    written = (settings.certificate, settings.client_key, settings.client_certificate)
    if not any(written):
        return None
    names = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
    files = [file or variable(signal, name) for file, name in zip(written, names, strict=True)]
    return grpc.ssl_channel_credentials(*[Path(file).read_bytes() if file else None for file in files])
