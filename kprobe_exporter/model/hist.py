"""What a hist trigger is told, what its rows are to which metric, and what it tells: frozen values."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias


class HistKey(NamedTuple):
    """One key of a hist trigger: ``name`` in the kernel's event, ``field`` in our records.

    The kernel prints every number as an unsigned one: ``bits`` and ``signed`` say how to read it; a
    string has no bits. ``log2``: instead of the value the power of two that is the next above it.
    """

    field: str
    name: str
    bits: int = 64
    signed: bool = False
    log2: bool = False

    def render(self) -> str:
        return f"{self.name}.log2" if self.log2 else self.name


HistUse: TypeAlias = Literal["add", "spread", "errors", "negative"]
"""Rows are added to a counter; put into the buckets of a histogram; counted by the errno that their value
is, if it is one; or are values below 0 that a counter refuses."""


class HistFeed(NamedTuple):
    """What the rows of a table are to one metric.

    ``group`` numbers the metrics as the groups of a Recipe do: those of the probe, then the errors and
    the values that it returns. ``labels`` and ``value`` are places among the table's keys.
    """

    group: int
    use: HistUse
    labels: tuple[int, ...] = ()
    value: int = 0


class HistTable(NamedTuple):
    """One hist trigger and what it feeds, pure: what would be written, without having been written.

    ``value`` is the field that is summed up, None where the rows need no sum; ``size`` the rows that the
    kernel makes room for. ``passed``: its hits are events that passed the probe's filter, and no other
    table that says so counts the same ones.
    """

    keys: tuple[HistKey, ...]
    value: str | None
    condition: str | None
    size: int
    feeds: tuple[HistFeed, ...]
    passed: bool = False

    @property
    def trigger(self) -> str:
        """The trigger as the kernel wants it (event_hist_trigger_parse, kernel/trace/trace_events_hist.c)."""
        keys = ",".join(key.render() for key in self.keys)
        vals = f":vals={self.value}" if self.value else ""
        condition = f" if {self.condition}" if self.condition else ""
        return f"hist:keys={keys}{vals}:size={self.size}{condition}"


class HistReading(NamedTuple):
    """A table as it was read: ``rows`` give hits and sum by key, the numbers as the kernel prints them.

    ``hits`` are those that found a row, ``dropped`` those that found no room for one.
    """

    hits: int
    dropped: int
    rows: Mapping[tuple[int | bytes, ...], tuple[int, int]]
