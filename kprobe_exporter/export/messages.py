"""A family as a message of Prometheus' protobuf format, preceded by its length.

The messages are those of io/prometheus/client/metrics.proto. A test compares what is written here with what
the protobuf library reads by that definition.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import floor
from struct import Struct

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.values import Exemplar, Family, HistogramValue, LabelValues
from kprobe_exporter.util.protobuf import field, varint

_TYPES = {"counter": b"\x18\x00", "gauge": b"\x18\x01", "histogram": b"\x18\x04"}  # MetricFamily.type
_NUMBERS = {
    "counter": b"\x1a\x09\x09",
    "gauge": b"\x12\x09\x09",
}  # Metric.counter and .gauge, with their value
_METRIC = b"\x22"  # MetricFamily.metric
_COUNT = b"\x08"  # Histogram.sample_count and Bucket.cumulative_count
_SUM = b"\x11"  # Histogram.sample_sum, Bucket.upper_bound and Exemplar.value

_DOUBLE = Struct("<d").pack


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
        if isinstance(value, HistogramValue):
            metric = labels + field(7, _histogram(value))
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


def _histogram(value: HistogramValue) -> bytes:
    totals = [*accumulate(value.counts)]
    parts = [_COUNT + varint(totals[-1]) + _SUM + _DOUBLE(value.sum)]
    for index, (bound, total) in enumerate(zip((*value.bounds, float("inf")), totals, strict=True)):
        bucket = _COUNT + varint(total) + _SUM + _DOUBLE(bound)
        if index in value.exemplars:
            bucket += field(3, _exemplar(value.exemplars[index]))
        parts.append(field(3, bucket))
    return b"".join(parts)


def _exemplar(one: Exemplar) -> bytes:
    ids = ((b"span_id", f"{one.span:016x}"), (b"trace_id", f"{one.trace:032x}"))
    labels = b"".join([field(1, field(1, name) + field(2, text.encode())) for name, text in ids])
    seconds = floor(one.time)
    nanoseconds = min(int((one.time - seconds) * 1e9), 999_999_999)
    time = _COUNT + varint(seconds) + b"\x10" + varint(nanoseconds)  # google.protobuf.Timestamp
    return labels + _SUM + _DOUBLE(one.value) + field(3, time)
