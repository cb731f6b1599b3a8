"""How many items a collector rejected of a request that it accepted, in either protocol."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kprobe_exporter.export.otlp.retry import RequestOutcome
from kprobe_exporter.export.otlp.settings import Signal

MAX_REQUEST = 4 << 20
"""Bytes of one request before compression: the default limit of gRPC servers."""

RESPONSES: Mapping[Signal, tuple[Any, str]] = {
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
}


def partial(signal: Signal, response: Any) -> RequestOutcome:
    """Return the answer for an accepted request, from its response or the response's bytes."""
    kind, rejected = RESPONSES[signal]
    if isinstance(response, bytes):
        try:
            response = kind.FromString(response)
        except Exception:  # not an OTLP response: only the status is known, and it means success
            return RequestOutcome(True)
    success = response.partial_success
    return RequestOutcome(True, success.error_message, rejected=max(0, getattr(success, rejected)))
