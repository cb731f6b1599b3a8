"""The three services of an OTLP collector: their messages, and the number of items in a request."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Service(NamedTuple):
    """One signal: its messages, the path to its items, the field that counts rejects, its registration."""

    request: Any
    response: Any
    path: tuple[str, str, str]
    rejected: str
    add: Any

    def items(self, request: Any) -> list[Any]:
        """The log records, spans or metrics of a request."""
        of_resource, of_scope, of_item = self.path
        return [
            item
            for resource in getattr(request, of_resource)
            for scope in getattr(resource, of_scope)
            for item in getattr(scope, of_item)
        ]

    def size(self, request: Any) -> int:
        """The number of items by OTLP's count: log records, spans or data points."""
        items = self.items(request)
        if self.path[2] != "metrics":
            return len(items)
        return sum(len(getattr(item, item.WhichOneof("data")).data_points) for item in items)

    def partial(self, rejected: int) -> Any:
        """The response to a request that was accepted except for this many items."""
        if not rejected:
            return self.response()
        return self.response(partial_success={self.rejected: rejected, "error_message": "no room"})


SERVICES: Mapping[str, Service] = {
    "logs": Service(
        logs_service_pb2.ExportLogsServiceRequest,
        logs_service_pb2.ExportLogsServiceResponse,
        ("resource_logs", "scope_logs", "log_records"),
        "rejected_log_records",
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server,
    ),
    "traces": Service(
        trace_service_pb2.ExportTraceServiceRequest,
        trace_service_pb2.ExportTraceServiceResponse,
        ("resource_spans", "scope_spans", "spans"),
        "rejected_spans",
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server,
    ),
    "metrics": Service(
        metrics_service_pb2.ExportMetricsServiceRequest,
        metrics_service_pb2.ExportMetricsServiceResponse,
        ("resource_metrics", "scope_metrics", "metrics"),
        "rejected_data_points",
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server,
    ),
}
