"""The label sets of one metric, limited in number, each with the cell that holds its value."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Generic, TypeVar

from kprobe_exporter.errors import name_text, one_line
from kprobe_exporter.model.aggregation import RawKey
from kprobe_exporter.model.snapshot import LabelValues
from kprobe_exporter.model.specs import LabelSpec
from kprobe_exporter.model.values import ABSENT, Value

OVERFLOW = "__overflow__"
"""The value of every label in the label set that counts the events beyond the limit."""

UNKNOWN = "unknown"
"""The value of a label that could not be read or decoded."""

LABEL_BYTES = 128

IDLE = 900.0
"""Seconds without an event after which a label set makes room for a new one, if its time to live is open."""

Cell = TypeVar("Cell")


@dataclass(slots=True)
class SeriesLimits:
    """The limits of label sets: of each metric, of all metrics together, and their time to live in seconds.

    A ``ttl`` of 0 keeps label sets for good. If it is None, one that was not seen for IDLE goes when another
    one needs its room: if it went earlier, ``increase()`` would miss rare events.

    All metrics share one object. It may change: label sets that exist already stay.
    """

    max_series: int
    max_series_total: int
    ttl: float | None = None
    clock: Callable[[], float] = time.monotonic
    used: int = field(default=0, init=False)
    expired: float = field(init=False)

    def __post_init__(self) -> None:
        self.expired = self.clock()

    @property
    def are_reached(self) -> bool:
        """Whether all metrics together have as many label sets as they may."""
        return self.used >= self.max_series_total

    def expire(self, every: "Iterable[Series[Any]]") -> None:
        """Every quarter of the time to live, remove the label sets that exceeded it.

        If it is open, idle ones go as soon as one metric's leave no room for another's.
        """
        ttl = IDLE if self.ttl is None else self.ttl
        if ttl and self.clock() - self.expired >= ttl / 4:
            self.expired = self.clock()
            full = self.ttl is None and self.are_reached
            for series in every:
                series.expire()
                if full:
                    series.forget(IDLE)


class Series(Generic[Cell]):
    """The cells of one metric by label set, within the limits, and one cell for the events beyond them.

    A cache leads from raw field values to their cell, so that an event of a known label set costs one lookup
    and decodes nothing. The cache is bounded too, since many raw values may decode to one label set. The age
    of a label set costs the event nothing either: ``expire`` empties the caches, so that a label set still in
    use goes through ``look_up`` again, which notes the time. ``removed`` takes the cells that expire.
    """

    def __init__(
        self,
        labels: tuple[LabelSpec, ...],
        make: Callable[[], Cell],
        limits: SeriesLimits,
        failures: Counter[str],
        removed: Callable[[Cell], None] = lambda cell: None,
    ) -> None:
        self.labels = labels
        self.cells: dict[LabelValues, Cell] = {}
        self.overflowed = 0
        self._make = make
        self._limits = limits
        self._failures = failures
        self._removed = removed
        self.generation = 0  # a cache is out of date if it has another one
        self._seen: dict[LabelValues, float] = {}
        self._expired = limits.clock()
        self._overflow = (OVERFLOW,) * len(labels)
        if not labels:
            self.cells[()] = make()
        self.cell = CellCache(self, labels)

    @property
    def most_raw(self) -> int:
        """How many raw values a cache may remember, since many of them may decode to one label set."""
        return 4 * self._limits.max_series

    def expire(self) -> None:
        """Remove the label sets that were not seen for the limits' ``ttl``; without one, remove none.

        It runs every quarter of the ``ttl``, so that a label set goes after 1 to 1.25 times that time.
        """
        self._expired = self._limits.clock()
        self.generation += 1
        if self._limits.ttl:
            self.forget(self._limits.ttl)

    def forget(self, age: float, most: int | None = None) -> None:
        """Remove label sets that were not seen for ``age`` seconds, ``most`` of them, the oldest first."""
        oldest = self._limits.clock() - age
        old = takewhile(lambda key: self._seen[key] < oldest, self._seen)
        for key in list(islice(old, most)):
            self._removed(self.cells.pop(key))
            del self._seen[key]
            self._limits.used -= 1
            self.generation += 1  # a cache may lead to the cell

    def close(self) -> None:
        """Stop counting the label sets of a removed metric against the limits."""
        self._limits.used -= len(self._seen)
        self._seen.clear()

    def look_up(self, labels: tuple[LabelSpec, ...], raw: RawKey, events: int) -> tuple[Cell, bool]:
        """Return the cell, and whether it may be cached: a failure and an overflow are counted each time."""
        texts = [self._decode(label, value, events) for label, value in zip(labels, raw, strict=True)]
        key = tuple(UNKNOWN if text is None else text for text in texts)
        bounded = key not in ((), self._overflow)  # a process may be named __overflow__
        found = self.cells.get(key)
        if found is None:
            if bounded and not self._has_room():
                self.overflowed += events
                return self.cells.setdefault(self._overflow, self._make()), False
            found = self.cells[key] = self._make()
            self._limits.used += bounded
        if bounded:
            self._seen.pop(key, None)  # the one that was not seen for longest stays the first
            self._seen[key] = self._limits.clock()
        return found, None not in texts

    def _has_room(self) -> bool:
        """Return whether a label set may be added, after the expired ones were removed.

        Expired label sets are searched for once a second at most, so that a flood of new ones stays cheap.
        """
        limits = self._limits
        if not self._fits():
            if limits.ttl and limits.clock() - self._expired >= 1:
                self.expire()
            elif limits.ttl is None and self._seen:
                self.forget(IDLE, most=1)
        return self._fits()

    def _fits(self) -> bool:
        return len(self._seen) < self._limits.max_series and not self._limits.are_reached

    def _decode(self, label: LabelSpec, value: Value, events: int) -> str | None:
        """Return a label's text; None, and a counted failure, for a value that has none."""
        text, failed = decoded(label, value)
        if text is None:
            self._failures[failed] += events
        return text


class CellCache(Generic[Cell]):
    """Finds the cells of raw values, one for each label of the probe that declared the metric.

    Probes that share a metric may decode its labels differently, so each has its own.
    """

    def __init__(self, series: Series[Cell], labels: tuple[LabelSpec, ...]) -> None:
        self.found: dict[RawKey, Cell] = {}
        self._series, self._labels, self._generation = series, labels, series.generation

    def __call__(self, raw: RawKey, events: int = 1) -> Cell:
        """Return the cell for so many events with these raw values."""
        series = self._series
        if self._generation != series.generation or len(self.found) >= series.most_raw:
            self._generation = series.generation
            self.found.clear()
        cell = self.found.get(raw)
        if cell is None:
            cell, lasts = series.look_up(self._labels, raw, events)
            if lasts:
                self.found[raw] = cell
        return cell


def decoded(label: LabelSpec, value: Value) -> tuple[str | None, str]:
    """Return a label's text. For a value that has none, return None and the decoder that failed.

    A field that the alternative in use lacks gives "", which Prometheus takes for no label.
    """
    if value == ABSENT:
        return "", ""
    for decoder, decode in label.decoders:
        text = None if value is None else decode(value)
        if text is None:
            return None, decoder
        value = text.encode()
    if label.decoders and isinstance(value, bytes):
        return _cut(one_line(value.decode(errors="backslashreplace"))), ""
    return (None, "none") if value is None else (plain(value), "")


def plain(value: Value) -> str:
    """Return a value as label text, cut at 128 bytes.

    Users choose the names of files and threads. So characters that do not print are escaped, such as an
    escape sequence or a change of the direction of writing. So are bytes that are not UTF-8. Names that
    differ within the cut stay different.
    """
    return _cut(name_text(value)) if isinstance(value, bytes) else str(value)


def _cut(text: str) -> str:
    return text if len(text) * 4 <= LABEL_BYTES else text.encode()[:LABEL_BYTES].decode(errors="ignore")
