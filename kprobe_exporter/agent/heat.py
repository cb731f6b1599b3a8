"""The last 15 minutes of each probe's durations and return values, for the heat maps on its page."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kprobe_exporter.model.values import HeatMap, Spread

STEP, STEPS = 15.0, 60
"""A column is STEP seconds, and there are STEPS of them: 15 minutes."""

Key: TypeAlias = tuple[str, str]
"""A probe, and the name of one of its built-in histograms."""


class HeatMaps:
    """The columns of each histogram; one in which nothing happened is empty.

    One thread updates it, any may read. A probe that is busy in all its buckets takes some 10 kB.
    """

    def __init__(self) -> None:
        self._since = float("-inf")
        self._last: Mapping[Key, Spread] = {}
        self._columns: dict[Key, deque[tuple[int, ...]]] = {}

    def update(self, now: float, read: Callable[[], Mapping[Key, Spread]]) -> None:
        """Take what ``read`` returns, if a column is full at this time of a monotonic clock, in seconds."""
        if now - self._since < STEP:
            return
        spreads, columns = read(), {}
        for key, spread in spreads.items():
            before = self._last.get(key)
            if before is None or before.bounds != spread.bounds:
                columns[key] = deque[tuple[int, ...]](maxlen=STEPS)
                continue
            columns[key] = self._columns[key]
            grown = [*map(int.__sub__, spread.counts, before.counts)]
            columns[key].append(tuple(grown) if any(grown) and min(grown) >= 0 else ())
        self._since, self._last, self._columns = now, spreads, columns

    def of(self, probe: str) -> tuple[HeatMap, ...]:
        """Return the heat maps of a probe in which there is anything."""
        last, columns = self._last, self._columns
        return tuple(
            HeatMap(kind, last[name, kind].bounds, tuple(found), STEP)
            for (name, kind), found in columns.items()
            if name == probe and any(found) and (name, kind) in last
        )
