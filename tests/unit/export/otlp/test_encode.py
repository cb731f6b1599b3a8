"""encode: what is written is what the SDK writes of the same spans."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from kprobe_exporter.export.otlp.encode import LONGEST_KEPT, Attribute, SpanRequests, span

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
    request = SpanRequests(RESOURCE, SCOPE)([span(*each) for each in written])
    expected = encode_spans([by_the_sdk(*each) for each in written])
    assert ExportTraceServiceRequest.FromString(request) == expected


def test_equal_numbers_of_different_types_stay_different() -> None:
    for value in (1, 1.0, 1):
        data = span(1, 2, 0, "f", 1, 2, {"a": value}, None)
        expected = encode_spans([by_the_sdk(1, 2, 0, "f", 1, 2, {"a": value}, None)])
        assert ExportTraceServiceRequest.FromString(SpanRequests(RESOURCE, SCOPE)([data])) == expected
