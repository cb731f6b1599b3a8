"""What a collector says of a request that it took, in either protocol: how much of it it rejected."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kprobe_exporter.export.otlp.attempts import Answer
from kprobe_exporter.export.otlp.settings import Signal

MAX_REQUEST = 4 << 20
"""Bytes of one request before compression: what gRPC's servers accept unless told otherwise."""

RESPONSES: Mapping[Signal, tuple[Any, str]] = {
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
}


def partial(signal: Signal, response: Any) -> Answer:
    """What a response, or its bytes, says about a request that was taken: all of it, or not quite."""
    kind, rejected = RESPONSES[signal]
    if isinstance(response, bytes):
        try:
            response = kind.FromString(response)
        except Exception:  # not the protocol's: the status says that it was taken, and that is all
            return Answer(True)
    told = response.partial_success
    return Answer(True, told.error_message, rejected=max(0, getattr(told, rejected)))
