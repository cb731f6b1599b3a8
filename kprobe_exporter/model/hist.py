"""Hist triggers: their keys, the metrics that their rows feed, and their tables as read. Frozen values."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias


class HistKey(NamedTuple):
    """One key of a hist trigger: ``name`` in the kernel's event, ``field`` in our records.

    The kernel prints every number as unsigned; ``bits`` and ``signed`` say how to convert it back. A string
    has 0 bits. If ``log2``, the key is the exponent of the next power of two, not the value. ``high`` names
    the field that holds the value's upper 32 bits, if the event has it.
    """

    field: str
    name: str
    bits: int = 64
    signed: bool = False
    log2: bool = False
    high: str = ""

    def render(self) -> str:
        return f"{self.name}.log2" if self.log2 else self.name


HistUse: TypeAlias = Literal["add", "spread", "errors", "negative"]
"""How a metric uses the rows: ``add`` adds them to a counter, ``spread`` to a histogram's buckets;
``errors`` counts values that are errors by errno, ``negative`` counts values below 0 as refused."""


class HistFeed(NamedTuple):
    """How one metric uses the rows of a table.

    ``feeds`` is the metric, as in `aggregation.Group`. ``labels`` and ``value`` are indexes into the table's
    keys; None for a label whose field the event lacks.
    """

    feeds: int
    use: HistUse
    labels: tuple[int | None, ...] = ()
    value: int = 0


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
