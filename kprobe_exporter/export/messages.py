"""A family as a message of Prometheus' protobuf format, preceded by its length.

The messages are those of io/prometheus/client/metrics.proto. A test compares what is written here with what
the protobuf library reads by that definition.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from math import floor
from operator import sub
from struct import Struct

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.values import Exemplar, Family, HistogramValue, LabelValues, NativeValue
from kprobe_exporter.util.protobuf import field, packed, signed, varint

_TYPES = {"counter": b"\x18\x00", "gauge": b"\x18\x01", "histogram": b"\x18\x04"}  # MetricFamily.type
_NUMBERS = {
    "counter": b"\x1a\x09\x09",
    "gauge": b"\x12\x09\x09",
}  # Metric.counter and .gauge, with their value
_VALUE = b"\x09"  # Counter.value
_METRIC = b"\x22"  # MetricFamily.metric
_COUNT = b"\x08"  # Histogram.sample_count and Bucket.cumulative_count
_SUM = b"\x11"  # Histogram.sample_sum, Bucket.upper_bound and Exemplar.value

_SCHEMA = b"\x28"  # Histogram.schema
_ZERO_THRESHOLD = b"\x31"
_ZERO_COUNT = b"\x38"

_DOUBLE = Struct("<d").pack

ZERO = 2.0**-128
"""Numbers up to here would be in the bucket of 0. It is the threshold of Prometheus' client library, and by
not being 0 it marks a native histogram that is still empty."""


def delimited(family: Family) -> bytes:
    """Return the family; nothing if it has no samples, because the format has no use for such a one."""
    if not family.samples:
        return b""
    about = family.help.encode("utf-8", "backslashreplace")
    head = field(1, family.name.encode()) + field(2, about) + _TYPES[family.type]
    body = b"".join([head, *_metrics(family)])
    return varint(len(body)) + body


def _metrics(family: Family) -> Iterator[bytes]:
    names = [field(1, name.encode()) for name in family.labels]
    number = _NUMBERS.get(family.type, b"")
    for values, value in family.samples.items():
        labels = _labels(names, values)
        created = _timestamp(family.created[values]) if values in family.created else b""
        if isinstance(value, HistogramValue):
            metric = labels + field(7, _histogram(value, created))
        elif created:
            metric = labels + field(3, _VALUE + _DOUBLE(value) + field(3, created))
        else:
            metric = labels + number + _DOUBLE(value)
        yield _METRIC + varint(len(metric)) + metric


def _labels(names: Iterable[bytes], values: LabelValues) -> bytes:
    """Return the fields of Metric.label. Values are escaped as in the other formats: series are equal."""
    return b"".join(
        [
            field(1, name + field(2, one_line(value).encode()))
            for name, value in zip(names, values, strict=True)
        ]
    )


def _histogram(value: HistogramValue, created: bytes) -> bytes:
    totals = [*accumulate(value.counts)]
    parts = [_COUNT + varint(totals[-1]) + _SUM + _DOUBLE(value.sum)]
    for index, (bound, total) in enumerate(zip((*value.bounds, float("inf")), totals, strict=True)):
        bucket = _COUNT + varint(total) + _SUM + _DOUBLE(bound)
        if index in value.exemplars:
            bucket += field(3, _exemplar(value.exemplars[index]))
        parts.append(field(3, bucket))
    if value.native is not None:
        parts += _native(value.native)
    return b"".join(parts) + (field(15, created) if created else b"")


def _native(value: NativeValue) -> Iterator[bytes]:
    """Yield the fields of Histogram that make it a native one, too."""
    yield _SCHEMA + signed(value.schema) + _ZERO_THRESHOLD + _DOUBLE(ZERO) + _ZERO_COUNT + varint(value.zero)
    for spans, deltas, counts in ((9, 10, value.negative), (12, 13, value.positive)):
        ordered = sorted(counts)
        for offset, length in _runs(ordered):
            yield field(spans, b"\x08" + signed(offset) + b"\x10" + varint(length))  # BucketSpan
        numbers = [counts[step] for step in ordered]
        yield packed(deltas, map(sub, numbers, [0, *numbers]))


def _runs(steps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of rising numbers without a gap: how far each begins from the end of the last, and its
    length."""
    end = 0
    for _, pairs in groupby(enumerate(steps), lambda pair: pair[1] - pair[0]):
        run = [step for _, step in pairs]
        yield run[0] - end, len(run)
        end = run[-1] + 1


def _exemplar(one: Exemplar) -> bytes:
    ids = ((b"span_id", f"{one.span:016x}"), (b"trace_id", f"{one.trace:032x}"))
    labels = b"".join([field(1, field(1, name) + field(2, text.encode())) for name, text in ids])
    return labels + _SUM + _DOUBLE(one.value) + field(3, _timestamp(one.time))


def _timestamp(time: float) -> bytes:
    """Return a google.protobuf.Timestamp."""
    seconds = floor(time)
    nanoseconds = min(int((time - seconds) * 1e9), 999_999_999)
    return b"\x08" + varint(seconds) + b"\x10" + varint(nanoseconds)
