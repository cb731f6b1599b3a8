"""Families as messages of Prometheus' protobuf format, each preceded by its length.

The messages are those of io/prometheus/client/metrics.proto. A test compares what is written here with what
the protobuf library reads by that definition.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from math import floor
from operator import sub
from struct import Struct
from typing import TypeVar

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.values import Exemplar, Family, HistogramValue, LabelValues, NativeValue
from kprobe_exporter.util.protobuf import field, packed, signed, varint

_Key = TypeVar("_Key")

_TYPES = {"counter": b"\x18\x00", "gauge": b"\x18\x01", "histogram": b"\x18\x04"}  # MetricFamily.type
_NUMBERS = {
    "counter": b"\x1a\x09\x09",
    "gauge": b"\x12\x09\x09",
}  # Metric.counter and .gauge, with their value
_COUNTER = b"\x1a"  # Metric.counter
_VALUE = b"\x09"  # Counter.value
_COUNTER_CREATED = b"\x1a"  # Counter.created_timestamp
_HISTOGRAM_CREATED = b"\x7a"  # Histogram.created_timestamp
_METRIC = b"\x22"  # MetricFamily.metric
_COUNT = b"\x08"  # Histogram.sample_count and Bucket.cumulative_count
_SUM = b"\x11"  # Histogram.sample_sum, Bucket.upper_bound and Exemplar.value

_SCHEMA = b"\x28"  # Histogram.schema
_ZERO_THRESHOLD = b"\x31"
_ZERO_COUNT = b"\x38"

_DOUBLE = Struct("<d").pack

_LENGTHS = [varint(length) for length in range(2048)]

ZERO = 2.0**-128
"""Numbers up to here would be in the bucket of 0. It is the threshold of Prometheus' client library, and by
not being 0 it marks a native histogram that is still empty."""


class Encoder:
    """Encodes the families of one rendering.

    The labels of a series are most of its message, and they and the time of its creation do not change: an
    encoder takes those that the one of the rendering ``before`` encoded. What it keeps for the next one are
    those of its own families, so that nothing is kept of a series that is gone.
    """

    def __init__(self, before: "Encoder | None" = None) -> None:
        self._before = before
        self._labels: dict[tuple[str, ...], _Kept[LabelValues]] = {}
        self._created: _Kept[float] = _Kept(_created, before._created if before else {})

    def delimited(self, family: Family) -> bytes:
        """Return the family; nothing if it has no samples, because the format has no use for such a one."""
        if not family.samples:
            return b""
        about = family.help.encode("utf-8", "backslashreplace")
        head = field(1, family.name.encode()) + field(2, about) + _TYPES[family.type]
        body = b"".join([head, *_metrics(family, self._labels_of(family.labels), self._created)])
        return varint(len(body)) + body

    def _labels_of(self, names: tuple[str, ...]) -> "_Kept[LabelValues]":
        if names not in self._labels:
            before = self._before._labels.get(names) if self._before else None
            encoded = [field(1, name.encode()) for name in names]
            self._labels[names] = _Kept(partial(_labels, encoded), before or {})
        return self._labels[names]

    def end(self) -> "Encoder":
        """Give up what is left of the rendering before, and return this encoder."""
        self._before = None
        self._created.before = {}
        for kept in self._labels.values():
            kept.before = {}
        return self


class _Kept(dict[_Key, bytes]):
    """What was encoded in this rendering or the one before; a look at what was not encodes it."""

    def __init__(self, encode: Callable[[_Key], bytes], before: Mapping[_Key, bytes]) -> None:
        self._encode = encode
        self.before = before

    def __missing__(self, key: _Key) -> bytes:
        found = self.before.get(key)
        self[key] = found = self._encode(key) if found is None else found
        return found


def _metrics(
    family: Family, labels: Mapping[LabelValues, bytes], created: Mapping[float, bytes]
) -> Iterator[bytes]:
    """Yield the fields MetricFamily.metric. ``created`` has messages that are preceded by their lengths."""
    number = _NUMBERS.get(family.type, b"")
    times = family.created
    for values, value in family.samples.items():
        since = created[times[values]] if values in times else b""
        if isinstance(value, HistogramValue):
            metric = labels[values] + field(7, _histogram(value, since))
        elif since:
            counter = _VALUE + _DOUBLE(value) + _COUNTER_CREATED + since
            metric = labels[values] + _COUNTER + _LENGTHS[len(counter)] + counter
        else:
            metric = labels[values] + number + _DOUBLE(value)
        length = len(metric)
        yield _METRIC + (_LENGTHS[length] if length < len(_LENGTHS) else varint(length)) + metric


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
    return b"".join(parts) + (_HISTOGRAM_CREATED + created if created else b"")


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


def _created(time: float) -> bytes:
    message = _timestamp(time)
    return varint(len(message)) + message


def _timestamp(time: float) -> bytes:
    """Return a google.protobuf.Timestamp."""
    seconds = floor(time)
    nanoseconds = min(int((time - seconds) * 1e9), 999_999_999)
    return b"\x08" + varint(seconds) + b"\x10" + varint(nanoseconds)
