"""Native histograms: exponential buckets, of which two become one where there are too many.

The buckets are those of Prometheus' native histograms. OpenTelemetry's exponential histograms have the same
ones, with indexes that are lower by one.
"""

from bisect import bisect_left
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import floor, log2

from kprobe_exporter.model.aggregation import Exponential, ExponentialBucket
from kprobe_exporter.model.snapshot import NativeValue
from kprobe_exporter.model.values import LARGEST, decimal

SCHEMA = 3
"""The finest: each power of two is divided into 8 buckets, of which each ends 9 % above the one before."""

COARSEST = -4
"""The coarsest that Prometheus knows: 5 buckets then hold all numbers of 64 bits."""

MAX_BUCKETS = 160
"""The most buckets of one label set, as in OpenTelemetry's SDKs."""

_STEPS = 1 << SCHEMA

_ROOTS = [Fraction(Context(prec=60).power(Decimal(2), Decimal(step) / _STEPS)) for step in range(_STEPS)]
"""2^(step / 8), to 60 digits."""


@lru_cache(64)
def exponential(scale: float) -> Exponential:
    """Return the finest buckets of all numbers of 64 bits multiplied by ``scale``. It takes 2 ms."""
    factor = decimal(scale)
    first = floor(log2(scale) * _STEPS) - 1
    while _bound(first) < factor:
        first += 1
    bounds: list[int] = []
    while not bounds or bounds[-1] < LARGEST:
        bounds.append(min(_bound(first + len(bounds)) // factor, LARGEST))
    return Exponential(SCHEMA, first, tuple(bounds))


def _bound(index: int) -> Fraction:
    """Return the greatest number of the bucket with this index."""
    power, step = divmod(index, _STEPS)
    return _ROOTS[step] * Fraction(2) ** power


def code(buckets: Exponential, number: int) -> int:
    """Return the code of the bucket of a whole number."""
    place = bisect_left(buckets.bounds, abs(number)) + 1
    return place if number > 0 else -place if number < 0 else 0


class NativeCell:
    """The counts of one label set's native histogram, by the index of their bucket."""

    __slots__ = ("negative", "positive", "schema", "zero")

    def __init__(self) -> None:
        self.schema = SCHEMA
        self.zero = 0
        self.positive: dict[int, int] = {}
        self.negative: dict[int, int] = {}

    def add(self, bucket: ExponentialBucket, events: int) -> None:
        """Count so many values in this bucket, or in the one that holds it."""
        self._coarsen(bucket.schema)
        if bucket.sign == 0:
            self.zero += events
            return
        counts = self.positive if bucket.sign > 0 else self.negative
        index = _coarser(bucket.step, bucket.schema - self.schema)
        counts[index] = counts.get(index, 0) + events
        while len(self.positive) + len(self.negative) > MAX_BUCKETS and self.schema > COARSEST:
            self._coarsen(self.schema - 1)

    def value(self) -> NativeValue:
        """Return a copy."""
        return NativeValue(self.schema, self.zero, dict(self.positive), dict(self.negative))

    def _coarsen(self, schema: int) -> None:
        """Change to a coarser schema, if this one is finer."""
        if schema < self.schema:
            steps, self.schema = self.schema - schema, schema
            self.positive, self.negative = (
                _merged(counts, steps) for counts in (self.positive, self.negative)
            )


def _merged(counts: dict[int, int], steps: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for index, events in counts.items():
        coarse = _coarser(index, steps)
        found[coarse] = found.get(coarse, 0) + events
    return found


def _coarser(index: int, steps: int) -> int:
    """Return the index of the same bucket in a schema that is coarser by so many steps.

    The bucket of an index ends with it, so a coarser index is rounded up.
    """
    return -(-index >> steps)
