"""Encodes spans and log records as OTLP's protobuf, a few times faster than by messages of the SDK.

The messages are those of opentelemetry/proto/trace/v1/trace.proto and logs/v1/logs.proto. Fields whose value
is the default may be omitted. A test compares the result with the SDK's encoders.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from struct import Struct
from typing import Any, TypeAlias

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kprobe_exporter.export.otlp.retry import RequestOutcome
from kprobe_exporter.util.protobuf import field, varint

Attribute: TypeAlias = str | int | float

_WORD = (1 << 64) - 1

LONGEST_KEPT = 64
"""Characters of the longest text whose encoding is kept, so that what is kept stays below 2 MB."""

_IDS = Struct(">2sQQ2sQ").pack
_TIMES = Struct("<BQBQ").pack
_DOUBLE = Struct("<cd").pack

_INTERNAL = b"\x30\x01"  # Span.kind: SPAN_KIND_INTERNAL
_NO_STATUS = b"\x7a\x00"  # Span.status: STATUS_CODE_UNSET
_LOCAL = b"\x85\x01\x00\x01\x00\x00"  # Span.flags: the parent is known not to be remote

_INFO, _ERROR = b"\x10\x09\x1a\x04INFO", b"\x10\x11\x1a\x05ERROR"  # LogRecord.severity_number and its text
_SAMPLED = b"\x45\x01\x00\x00\x00"  # LogRecord.flags


def span(
    trace: int,
    number: int,
    parent: int,
    name: str,
    start: int,
    end: int,
    attributes: Mapping[str, Attribute],
    error: str | None,
) -> bytes:
    """Return a Span of kind INTERNAL. ``parent`` is 0 for none; ``error`` describes the status ERROR."""
    parts = [_IDS(b"\x0a\x10", trace >> 64, trace & _WORD, b"\x12\x08", number)]
    if parent:
        parts.append(b"\x22\x08" + parent.to_bytes(8, "big"))
    parts.append(_name(name))
    parts.append(_TIMES(0x39, start, 0x41, end))
    parts += _attributes(b"\x4a", attributes)
    parts.append(_NO_STATUS if error is None else _status(error))
    parts.append(_LOCAL)
    return b"".join(parts)


def log_record(
    time: int,
    observed: int,
    event: str,
    body: str,
    attributes: Mapping[str, Attribute],
    trace: int,
    parent: int,
    *,
    error: bool,
) -> bytes:
    """Return a LogRecord. ``trace`` and ``parent`` are those of the span around it, 0 for none."""
    parts = [_TIMES(0x09, time, 0x59, observed), _ERROR if error else _INFO]
    parts.append(field(5, field(1, body.encode())))
    parts += _attributes(b"\x32", attributes)
    if trace:
        parts += _SAMPLED, field(9, trace.to_bytes(16, "big")), field(10, parent.to_bytes(8, "big"))
    parts.append(field(12, event.encode()))
    return b"".join(parts)


class Requests:
    """Makes requests of encoded spans, or of encoded log records: their numbers of fields are the same.

    The resource and the scope are encoded once.
    """

    def __init__(self, resource: Resource, scope: InstrumentationScope) -> None:
        self._resource = field(1, b"".join(_attributes(b"\x0a", dict(resource.attributes))))
        self._scope = field(1, field(1, scope.name.encode()) + field(2, (scope.version or "").encode()))

    def __call__(self, items: Iterable[bytes]) -> bytes:
        """Return an ExportTraceServiceRequest or an ExportLogsServiceRequest."""
        in_scope = b"".join([self._scope, *[b"\x12" + varint(len(one)) + one for one in items]])
        return field(1, self._resource + field(2, in_scope))


def accepted(response: bytes) -> RequestOutcome:
    """Return the outcome of a request that was accepted, except for the items that its response rejects.

    The responses of all signals are encoded alike: opentelemetry/proto/collector differs in names alone.
    A response that cannot be decoded rejects none.
    """
    with suppress(Exception):  # damaged data; the class of the library's DecodeError varies
        said = ExportTraceServiceResponse.FromString(response).partial_success
        return RequestOutcome(True, said.error_message, max(0, said.rejected_spans))
    return RequestOutcome(True)


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return field(5, name.encode()) + _INTERNAL


@lru_cache(maxsize=1024)
def _status(error: str) -> bytes:
    return field(15, field(2, error.encode()) + b"\x18\x02")  # STATUS_CODE_ERROR


def _attributes(tag: bytes, attributes: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a repeated field of KeyValues."""
    for key, value in attributes.items():
        long = type(value) is str and len(value) > LONGEST_KEPT
        yield tag + (_key_value(key, value) if long else _kept_key_value(key, value))


def _key_value(key: str, value: Attribute) -> bytes:
    """Return the length and the fields of a KeyValue with an AnyValue."""
    if isinstance(value, str):
        any_value = field(1, value.encode())
    elif isinstance(value, int):
        any_value = b"\x18" + varint(value & _WORD)
    else:
        any_value = _DOUBLE(b"\x21", value)
    return field(1, field(1, key.encode()) + field(2, any_value))[1:]


# Typed, since 1 and 1.0 are equal. Most attributes were in an item before it.
_kept_key_value = lru_cache(maxsize=8192, typed=True)(_key_value)
