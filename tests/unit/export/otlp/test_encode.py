"""encode: what is written is what the SDK writes of the same spans and log records."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from kprobe_exporter.export.otlp.encode import LONGEST_KEPT, Attribute, Requests, log_record, span

RESOURCE = Resource({"service.name": "kprobe_exporter", "host.name": "é" * 200})
SCOPE = InstrumentationScope("kprobe_exporter", "0.1")

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=2 * LONGEST_KEPT)
VALUES = st.one_of(
    TEXTS,
    st.sampled_from(["x" * 127, "x" * 128, "é" * 9000, 0, 1, 1.0, -1, 127, 128, 2**63 - 1, -(2**63)]),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
IDS = st.integers(1, 2**64 - 1)
TIMES = st.integers(0, 2**63 - 1)


def by_the_sdk(
    trace: int,
    number: int,
    parent: int,
    name: str,
    start: int,
    end: int,
    attributes: dict[str, Attribute],
    error: str | None,
) -> ReadableSpan:
    def context(one: int) -> SpanContext:
        return SpanContext(trace, one, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        name,
        context(number),
        context(parent) if parent else None,
        RESOURCE,
        attributes,
        status=Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, error),
        start_time=start,
        end_time=end,
        instrumentation_scope=SCOPE,
    )


SPANS = st.tuples(
    st.integers(1, 2**128 - 1),
    IDS,
    st.one_of(st.just(0), IDS),
    TEXTS,
    TIMES,
    TIMES,
    st.dictionaries(TEXTS, VALUES, max_size=12),
    st.one_of(st.none(), TEXTS),
)


@given(st.lists(SPANS, min_size=1, max_size=5))
def test_a_request_is_that_of_the_sdk(
    written: list[tuple[int, int, int, str, int, int, dict[str, Attribute], str | None]],
) -> None:
    request = Requests(RESOURCE, SCOPE)([span(*each) for each in written])
    expected = encode_spans([by_the_sdk(*each) for each in written])
    assert ExportTraceServiceRequest.FromString(request) == expected


def test_equal_numbers_of_different_types_stay_different() -> None:
    for value in (1, 1.0, 1):
        data = span(1, 2, 0, "f", 1, 2, {"a": value}, None)
        expected = encode_spans([by_the_sdk(1, 2, 0, "f", 1, 2, {"a": value}, None)])
        assert ExportTraceServiceRequest.FromString(Requests(RESOURCE, SCOPE)([data])) == expected


def log_by_the_sdk(
    time: int,
    observed: int,
    event: str,
    body: str,
    attributes: dict[str, Attribute],
    trace: int,
    parent: int,
    *,
    error: bool,
) -> ReadableLogRecord:
    severity = SeverityNumber.ERROR if error else SeverityNumber.INFO
    record = LogRecord(
        timestamp=time,
        observed_timestamp=observed,
        context=Context(),
        severity_text=severity.name,
        severity_number=severity,
        body=body,
        attributes=attributes,
        event_name=event,
    )
    record.trace_id, record.span_id = trace, parent
    record.trace_flags = TraceFlags(TraceFlags.SAMPLED if trace else 0)
    return ReadableLogRecord(record, RESOURCE, SCOPE)


LOGS = st.fixed_dictionaries(
    {
        "time": TIMES,
        "observed": TIMES,
        "event": TEXTS,
        "body": TEXTS,
        "attributes": st.dictionaries(TEXTS, VALUES, max_size=12),
        "trace": st.one_of(st.just(0), st.integers(1, 2**128 - 1)),
        "parent": IDS,
        "error": st.booleans(),
    }
).map(lambda log: {**log, "parent": log["parent"] if log["trace"] else 0})


@given(st.lists(LOGS, min_size=1, max_size=5))
def test_request_of_logs_equals_the_sdks(written: list[dict[str, Any]]) -> None:
    request = Requests(RESOURCE, SCOPE)([log_record(**each) for each in written])
    expected = encode_logs([log_by_the_sdk(**each) for each in written])
    assert ExportLogsServiceRequest.FromString(request) == expected
