"""Spans to export, made of numbers; the SDK's spans as ours are encoded, and encoded spans read again."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from kprobe_exporter.export.otlp.encode import Requests
from kprobe_exporter.export.otlp.settings import OtlpSettings
from kprobe_exporter.export.otlp.transport import Transport, connect

RESOURCE = Resource({"service.name": "kprobe_exporter"})
SCOPE = InstrumentationScope("kprobe_exporter", "1")


def connect_traces(settings: OtlpSettings) -> Transport:
    """The transport of spans, with the resource and the scope of this module."""
    return connect("traces", settings, Requests(RESOURCE, SCOPE))


def span(number: int, name: str = "") -> bytes:
    context = SpanContext(1, number, is_remote=False, trace_flags=TraceFlags(1))
    name = name or f"call {number}"
    return encoded(ReadableSpan(name, context, None, RESOURCE, instrumentation_scope=SCOPE))


def spans(numbers: list[int], name: str = "") -> list[bytes]:
    return [span(number, name) for number in numbers]


def encoded(span: ReadableSpan) -> bytes:
    """A span of the SDK, encoded by the SDK."""
    [of_resource] = encode_spans([span]).resource_spans
    [of_scope] = of_resource.scope_spans
    [only] = of_scope.spans
    message: bytes = only.SerializeToString()
    return message


def decoded(data: bytes) -> Span:
    span: Span = Span.FromString(data)
    return span


def attributes_of(items: Sequence[Any]) -> dict[str, str | int | float]:
    """The attributes of a decoded message."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in items}
