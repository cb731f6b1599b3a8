"""Families as messages of Prometheus' protobuf format, each preceded by its length.

The messages are those of io/prometheus/client/metrics.proto. A test compares what is written here with what
the protobuf library reads by that definition.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, groupby
from math import floor
from operator import sub
from struct import Struct
from typing import NamedTuple, TypeVar, cast

from kprobe_exporter.errors import one_line
from kprobe_exporter.model.snapshot import Exemplar, Family, HistogramValue, LabelValues, NativeValue
from kprobe_exporter.util.protobuf import field, packed, signed, varint

_Key = TypeVar("_Key")

_TYPES = {"counter": b"\x18\x00", "gauge": b"\x18\x01", "histogram": b"\x18\x04"}  # MetricFamily.type
_NUMBERS = {"counter": b"\x1a", "gauge": b"\x12"}  # Metric.counter and .gauge
_VALUE = b"\x09"  # Counter.value and Gauge.value
_COUNTER_CREATED = b"\x1a"  # Counter.created_timestamp
_HISTOGRAM_CREATED = b"\x7a"  # Histogram.created_timestamp
_METRIC = b"\x22"  # MetricFamily.metric
_COUNT = b"\x08"  # Histogram.sample_count and Bucket.cumulative_count
_SUM = b"\x11"  # Histogram.sample_sum, Bucket.upper_bound and Exemplar.value

_SCHEMA = b"\x28"  # Histogram.schema
_ZERO_THRESHOLD = b"\x31"
_ZERO_COUNT = b"\x38"

_DOUBLE = Struct("<d").pack
_DOUBLE_BYTES = 8

ZERO = 2.0**-128
"""Numbers up to here would be in the bucket of 0. It is the threshold of Prometheus' client library, and by
not being 0 it marks a native histogram that is still empty."""


class Encoder:
    """Encodes the families of one rendering.

    The labels of a series are most of its message, and they and the time of its creation do not change: an
    encoder takes those that the one of the rendering ``before`` encoded. It keeps only those of its own
    families for the next one, so that nothing is kept of a series that is gone. A number that was there
    before takes about 0.5 µs.
    """

    def __init__(self, before: "Encoder | None" = None) -> None:
        self._before = before
        self._numbers: dict[str, _Numbers] = {}  # by the family's name
        self._labels: dict[tuple[str, ...], _Kept[LabelValues]] = {}  # of histograms
        self._created: _Kept[float] = _Kept(_created, before._created if before else {})

    def delimited(self, family: Family) -> bytes:
        """Return the family; nothing if it has no samples, because the format has no use for such a one."""
        if not family.samples:
            return b""
        about = family.help.encode("utf-8", "backslashreplace")
        head = field(1, family.name.encode()) + field(2, about) + _TYPES[family.type]
        body = head + (self._histograms(family) if family.type == "histogram" else self._of_numbers(family))
        return varint(len(body)) + body

    def _of_numbers(self, family: Family) -> bytes:
        names, created, before = [*family.samples], [*map(family.created.get, family.samples)], None
        if self._before is not None:
            before = self._before._numbers.get(family.name)
        if before is None or (before.labels, before.type) != (family.labels, family.type):
            numbers = self._around(family, names, created, {})
        elif (before.samples, before.created) == (names, created):
            numbers = before
        else:
            known = zip(before.samples, before.created, strict=True)
            around = zip(before.heads, before.tails, strict=True)
            numbers = self._around(family, names, created, dict(zip(known, around, strict=True)))
        self._numbers[family.name] = numbers
        values = map(_DOUBLE, cast("Iterable[float]", family.samples.values()))
        return b"".join(chain.from_iterable(zip(numbers.heads, values, numbers.tails, strict=True)))

    def _around(
        self,
        family: Family,
        samples: list[LabelValues],
        created: list[float | None],
        known: Mapping[tuple[LabelValues, float | None], tuple[bytes, bytes]],
    ) -> "_Numbers":
        """Return what is around the values of a family's samples; ``known`` is that of some of them."""
        names = [field(1, name.encode()) for name in family.labels]
        heads, tails = [], []
        for series in zip(samples, created, strict=True):
            around = known.get(series)
            if around is None:
                since = b"" if series[1] is None else self._created[series[1]]
                around = _around_value(_labels(names, series[0]), family.type, since)
            heads.append(around[0])
            tails.append(around[1])
        return _Numbers(family.labels, family.type, samples, created, heads, tails)

    def _histograms(self, family: Family) -> bytes:
        labels, times = self._labels_of(family.labels), family.created
        parts = []
        for values, value in family.samples.items():
            assert isinstance(value, HistogramValue)
            since = self._created[times[values]] if values in times else b""
            metric = labels[values] + field(7, _histogram(value, since))
            parts.append(_METRIC + varint(len(metric)) + metric)
        return b"".join(parts)

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
    """The values that this rendering or the one before encoded; a look-up encodes a new one."""

    def __init__(self, encode: Callable[[_Key], bytes], before: Mapping[_Key, bytes]) -> None:
        self._encode = encode
        self.before = before

    def __missing__(self, key: _Key) -> bytes:
        found = self.before.get(key)
        self[key] = found = self._encode(key) if found is None else found
        return found


class _Numbers(NamedTuple):
    """The counters or gauges of one family as they were encoded: what is before and behind each value."""

    labels: tuple[str, ...]
    type: str
    samples: list[LabelValues]
    created: list[float | None]
    heads: list[bytes]
    tails: list[bytes]


def _around_value(labels: bytes, kind: str, created: bytes) -> tuple[bytes, bytes]:
    """Return what is around a number in the field MetricFamily.metric.

    ``created`` is a message that is preceded by its length, or nothing.
    """
    tail = _COUNTER_CREATED + created if created else b""
    number = _NUMBERS[kind] + varint(1 + _DOUBLE_BYTES + len(tail)) + _VALUE
    length = len(labels) + len(number) + _DOUBLE_BYTES + len(tail)
    return _METRIC + varint(length) + labels + number, tail


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
    pairs = [(name.encode(), one_line(text).encode()) for name, text in one.labels]
    labels = b"".join([field(1, field(1, name) + field(2, text)) for name, text in pairs])
    return labels + _SUM + _DOUBLE(one.value) + field(3, _timestamp(one.time))


def _created(time: float) -> bytes:
    message = _timestamp(time)
    return varint(len(message)) + message


def _timestamp(time: float) -> bytes:
    """Return a google.protobuf.Timestamp."""
    seconds = floor(time)
    nanoseconds = min(int((time - seconds) * 1e9), 999_999_999)
    return b"\x08" + varint(seconds) + b"\x10" + varint(nanoseconds)
