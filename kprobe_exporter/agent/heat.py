"""The last 15 minutes of each probe's histograms, for the heat maps on its page."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kprobe_exporter.model.snapshot import HeatMap, Spread

STEP, STEPS = 15.0, 60
"""A column is STEP seconds, and there are STEPS of them: 15 minutes."""

Key: TypeAlias = tuple[str, str]
"""A probe, and the name of one of its histograms."""


class HeatMaps:
    """The columns of each histogram; one in which nothing happened is empty.

    One thread updates it, any may read. A histogram that is busy in all its buckets takes about 10 kB.
    """

    def __init__(self) -> None:
        self._since = float("-inf")
        # Replaced as a whole, so that bounds and columns that are read together belong together.
        self._now: Mapping[Key, tuple[Spread, deque[tuple[int, ...]]]] = {}

    def update(self, now: float, read: Callable[[], Mapping[Key, Spread]]) -> None:
        """Take what ``read`` returns, if a column is full at this time of a monotonic clock, in seconds."""
        if now - self._since < STEP:
            return
        fresh: dict[Key, tuple[Spread, deque[tuple[int, ...]]]] = {}
        for key, spread in read().items():
            before, columns = self._now.get(key, (None, deque[tuple[int, ...]](maxlen=STEPS)))
            if before is None or before.bounds != spread.bounds:
                columns = deque[tuple[int, ...]](maxlen=STEPS)
            else:
                grown = [*map(int.__sub__, spread.counts, before.counts)]
                columns.append(tuple(grown) if any(grown) and min(grown) >= 0 else ())
            fresh[key] = spread, columns
        self._since, self._now = now, fresh

    def of(self, probe: str) -> tuple[HeatMap, ...]:
        """Return the heat maps of a probe in which there is anything."""
        return tuple(
            HeatMap(kind, spread.bounds, tuple(columns), STEP)
            for (name, kind), (spread, columns) in self._now.items()
            if name == probe and any(columns)
        )
