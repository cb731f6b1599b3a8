"""Sending as fast as one can: never more ahead than fits, and the same items by every way."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

from kprobe_exporter.agent.otlp import Signal
from kprobe_exporter.export.otlp.build import SCOPE
from kprobe_exporter.export.otlp.channel import BATCH
from kprobe_exporter.export.otlp.resource import resource
from kprobe_exporter.export.otlp.settings import Protocol
from kprobe_exporter.model.records import Emission
from tests.bench import sending
from tests.bench.sending import AHEAD, ERRORS, QUEUE, WAYS, Counted, Way, calls, ours, send, usual
from tests.support.keeping_sender import KeepingSender
from tests.support.otlp_spans import attributes_of, decoded, encoded

RESULTS: Mapping[Signal, Any] = {"span": SpanExportResult, "log": LogRecordExportResult}
TOLERANCE = 10_000_000_000
"""Nanoseconds between two looks at the clocks."""


class Slow:
    """Takes nothing until so many wait that no more come, then a batch at each look."""

    def __init__(self) -> None:
        self.got: list[Emission] = []
        self.taken = self.most = 0
        self._looked_at = -1

    def exported(self) -> int:
        if len(self.got) == self._looked_at:
            self.taken = min(self.taken + BATCH, len(self.got))
        self._looked_at = len(self.got)
        self.most = max(self.most, len(self.got) - self.taken)
        return self.taken

    def way(self) -> Way:
        return Way(self.got.append, self.exported, lambda: None)


class Kept:
    """Stands where an exporter of the SDK does."""

    def __init__(self, signal: Signal, *, taken: bool = True) -> None:
        self.items: list[Any] = []
        self._result = RESULTS[signal].SUCCESS if taken else RESULTS[signal].FAILURE

    def export(self, items: Sequence[Any]) -> Any:
        self.items += items
        return self._result

    def shutdown(self) -> None:
        pass


def test_no_more_ahead_than_fits() -> None:
    slow, emissions = Slow(), calls(5)
    for count in (BATCH, 3 * AHEAD):  # the second time there is a number to begin with
        before = len(slow.got)
        took = send(slow.way(), emissions, count)
        assert (took.items, len(slow.got) - before, slow.taken) == (count, count, len(slow.got))
        assert took.seconds > 0
    assert slow.most == AHEAD < QUEUE
    assert slow.got[:6] == [*emissions, emissions[0]]


def test_what_is_not_taken_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PATIENCE", 0.01)
    with pytest.raises(AssertionError, match=f"{BATCH} of {BATCH} items were not taken"):
        send(Way(lambda _: None, lambda: 0, lambda: None), calls(1), BATCH)


def test_the_last_ones_wait_for_no_others() -> None:
    with pytest.raises(AssertionError):
        send(Slow().way(), calls(1), BATCH + 1)


@pytest.mark.parametrize(("taken", "exported"), [(True, 3), (False, 0)])
def test_only_what_was_taken_is_counted(taken: bool, exported: int) -> None:
    counted = Counted(Kept("span", taken=taken))
    counted.export([1, 2, 3])
    assert counted.exported == exported


def told(span: Span) -> tuple[object, ...]:
    """What must be the same by every way, of a span: all but its ids."""
    return (
        span.name,
        attributes_of(span.attributes),
        span.end_time_unix_nano - span.start_time_unix_nano,
        span.status.code,
        span.status.message,
        span.kind,
    )


def told_of_log(log: LogRecord) -> tuple[object, ...]:
    """What must be the same by every way, of a log record."""
    values = log.body.string_value, log.severity_number, log.severity_text, log.event_name
    return (*values, attributes_of(log.attributes))


def log_encoded(item: ReadableLogRecord) -> LogRecord:
    """A log record of the SDK, as the SDK encodes it."""
    [of_resource] = encode_logs([item]).resource_logs
    assert attributes_of(of_resource.resource.attributes) == dict(resource().attributes)
    [of_scope] = of_resource.scope_logs
    log: LogRecord = LogRecord.FromString(of_scope.log_records[0].SerializeToString())
    return log


def sent(way: Way, count: int) -> None:
    for emission in calls(count):
        way.put(emission)
    way.close()
    assert way.exported() == count


def test_the_same_spans_by_every_way() -> None:
    by_us, by_tracer, by_sdk = KeepingSender(), Kept("span"), Kept("span")
    sent(ours("span", by_us), 2 * ERRORS)
    sent(usual("span", by_tracer), 2 * ERRORS)
    sent(sending.built(by_sdk), 2 * ERRORS)
    our_spans = [decoded(item) for item in by_us.items]
    expected = [told(span) for span in our_spans]
    assert sum(span.status.message == "EINVAL" for span in our_spans) == 2
    for kept in (by_tracer, by_sdk):
        spans = [decoded(encoded(item)) for item in kept.items]
        assert [told(span) for span in spans] == expected
        for span, our in zip(spans, our_spans, strict=True):
            assert abs(span.start_time_unix_nano - our.start_time_unix_nano) < TOLERANCE
        assert {item.instrumentation_scope for item in kept.items} == {SCOPE}
        assert all(dict(item.resource.attributes) == dict(resource().attributes) for item in kept.items)


def test_the_same_log_records_by_every_way() -> None:
    by_us, by_logger = KeepingSender(), Kept("log")
    sent(ours("log", by_us), 2 * ERRORS)
    sent(usual("log", by_logger), 2 * ERRORS)
    found = [told_of_log(LogRecord.FromString(item)) for item in by_us.items]
    assert found == [told_of_log(log_encoded(item)) for item in by_logger.items]
    assert len(found) == 2 * ERRORS


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize(("way", "signal"), [(way, signal) for signal, ways in WAYS.items() for way in ways])
def test_every_way_opens_before_there_is_a_collector(way: str, signal: Signal, protocol: Protocol) -> None:
    found = sending.opened(way, signal, protocol, "http://127.0.0.1:1")
    assert found.exported() == 0
    found.close()
