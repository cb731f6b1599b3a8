"""Hist triggers: their keys, the metrics that their rows feed, and their tables as read. Frozen values."""

from collections.abc import Iterable, Mapping
from math import floor, gcd
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.values import unscaled

MAX_LINEAR = 1024
"""Linear buckets of one label set. The kernel gives a row to each that has a value."""


class BucketForm(NamedTuple):
    """The rows by which the kernel counts values above 0: powers of two, or steps of one ``width``.

    ``last`` is the greatest value with a bound, and ``rows`` the number of rows up to there.
    """

    width: int = 0
    last: int = 0
    rows: int = 0


def bucket_form(bounds: Iterable[float], scale: float, offset: int = 0) -> BucketForm | None:
    """Return the rows that end at each bound above 0, divided by ``scale``; None if the kernel has none.

    A linear bucket of the kernel ends one below a multiple of its width. ``offset`` is added to its number.
    """
    ends = [floor(unscaled(bound, scale)) for bound in bounds if bound > 0]
    if all(end.bit_count() == 1 for end in ends):
        return BucketForm()
    width, last = gcd(*(end + 1 - offset for end in ends)), max(ends)
    rows = (last + 1 - offset) // width if width else 0
    return BucketForm(width, last, rows) if 0 < rows <= MAX_LINEAR and last < 1 << 63 else None


class HistKey(NamedTuple):
    """One key of a hist trigger: ``name`` in the kernel's event, ``field`` in our records.

    The kernel prints every number as unsigned; ``bits`` and ``signed`` say how to convert it back. A string
    has 0 bits. The key of ``log2`` is the exponent of the next power of two. The key of a ``width`` is the
    first number of a linear bucket. ``high`` names the field that holds the value's upper 32 bits, if the
    event has it. ``offset`` is added to the kernel's number. ``less`` names the field that holds the
    value less 1, if the event has it: its linear buckets end at multiples of their width.
    """

    field: str
    name: str
    bits: int = 64
    signed: bool = False
    log2: bool = False
    high: str = ""
    width: int = 0
    offset: int = 0
    less: str = ""

    def render(self) -> str:
        if self.width:
            return f"{self.name}.buckets={self.width}"
        return f"{self.name}.log2" if self.log2 else self.name


class HistEvent(NamedTuple):
    """The ``keys`` of an event that hist triggers may use, and the ``condition`` of every trigger on it."""

    keys: tuple[HistKey, ...] = ()
    condition: str | None = None


HistUse: TypeAlias = Literal["add", "spread", "errors", "negative"]
"""How a metric uses the rows: ``add`` adds them to a counter, ``spread`` to a histogram's buckets;
``errors`` counts values that are errors by errno, ``negative`` counts values below 0 as refused."""


class HistFeed(NamedTuple):
    """How one metric uses the rows of a table.

    ``feeds`` is the metric, as in `aggregation.Group`. ``labels`` and ``value`` are indexes into the table's
    keys; None for a label whose field the event lacks, and for values that are above all bounds.
    """

    feeds: int
    use: HistUse
    labels: tuple[int | None, ...] = ()
    value: int | None = 0


class HistTable(NamedTuple):
    """One hist trigger and the metrics that it feeds, as a description: nothing is written yet.

    ``value`` is the field to sum, None where the rows need no sum. ``size`` is the number of rows that the
    kernel allocates. ``passed``: the table's hits count as events that passed the probe's filter; tables
    of one probe that are marked so never count the same event twice. ``high`` is the field with the upper 32
    bits of ``value``, summed too: from both the sum is known beyond its 64 bits.
    """

    keys: tuple[HistKey, ...]
    value: str | None
    condition: str | None
    size: int
    feeds: tuple[HistFeed, ...]
    passed: bool = False
    high: str = ""

    @property
    def vals(self) -> str:
        """The summed fields, as the kernel spells them."""
        return ",".join(name for name in (self.value, self.high) if name)

    @property
    def trigger(self) -> str:
        """The trigger in the kernel's syntax (event_hist_trigger_parse, kernel/trace/trace_events_hist.c)."""
        keys = ",".join(key.render() for key in self.keys)
        vals = f":vals={self.vals}" if self.value else ""
        condition = f" if {self.condition}" if self.condition else ""
        return f"hist:keys={keys}{vals}:size={self.size}{condition}"


class HistReading(NamedTuple):
    """A table as it was read: ``rows`` map keys to hits and sum, with numbers as the kernel prints them, but
    for a sum with upper halves, which is whole.

    ``hits`` counts events that were added to a row, ``dropped`` events whose new key found the table full.
    """

    hits: int
    dropped: int
    rows: Mapping[tuple[int | bytes, ...], tuple[int, int]]
