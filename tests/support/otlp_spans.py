"""Spans to export, made of numbers."""

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

RESOURCE = Resource({"service.name": "kprobe_exporter"})
SCOPE = InstrumentationScope("kprobe_exporter", "1")


def span(number: int) -> ReadableSpan:
    context = SpanContext(1, number, is_remote=False, trace_flags=TraceFlags(1))
    return ReadableSpan(f"call {number}", context, None, RESOURCE, instrumentation_scope=SCOPE)


def spans(numbers: list[int]) -> list[ReadableSpan]:
    return [span(number) for number in numbers]
