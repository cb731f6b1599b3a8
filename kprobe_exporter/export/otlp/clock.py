"""The wall's time of a moment of the kernel's clock, also where either was set, slewed or stood still."""

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

PAUSE = 1_000_000_000
"""Nanoseconds between two looks at the clocks, at the least."""

MOST_SAMPLES = 600
READS = 3


class _Sample(NamedTuple):
    at: int
    offset: int


class WallClock:
    """Turns nanoseconds of the records' clock into nanoseconds since 1970 (UTC, as the system has it).

    The two clocks' distance changes when the system's is set or slewed, and when the machine was
    suspended, where CLOCK_MONOTONIC stands still (kernel/time/timekeeping.c). So it is looked at again and
    again, and a moment gets the distance that was seen nearest to it: of the last ten minutes at least
    one a second is remembered, as long as somebody asks. Call ``refresh`` when events are read, and what
    waits in a queue meanwhile keeps the time that it was at. Half a second before and after a sudden
    change, the wrong side of it may be taken.

    ``records`` reads the records' clock, ``wall`` the other. Any thread may call; nothing is locked: the
    samples are replaced as a whole, so at worst one is lost.
    """

    def __init__(
        self,
        records: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._records = records
        self._wall = wall
        self._samples: tuple[_Sample, ...] = (self._look(),)

    def now(self) -> int:
        """The wall's time."""
        return self._wall()

    def unix_ns(self, moment: int) -> int:
        """When it was on the wall at this moment. Costs 0.3 µs."""
        self.refresh()
        samples = self._samples
        last = samples[-1]
        if moment >= last.at or len(samples) == 1:
            return moment + last.offset
        after = bisect_left(samples, (moment,))
        if after == 0:
            return moment + samples[0].offset
        before, later = samples[after - 1], samples[after]
        return moment + (later if later.at - moment <= moment - before.at else before).offset

    def refresh(self) -> None:
        """Look at the clocks if the last time was a second ago."""
        if self._records() - self._samples[-1].at >= PAUSE:
            self._samples = (*self._samples[1 - MOST_SAMPLES :], self._look())

    def _look(self) -> _Sample:
        """The median of some reads: one may have been interrupted in between."""
        found = []
        for _ in range(READS):
            before = self._records()
            wall = self._wall()
            after = self._records()
            found.append(_Sample((before + after) // 2, wall - (before + after) // 2))
        found.sort(key=lambda sample: sample.offset)
        return found[READS // 2]
