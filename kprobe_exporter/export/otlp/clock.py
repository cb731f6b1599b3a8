"""Converts the kernel's clock to wall time, even if either clock was set, slewed or suspended."""

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

PAUSE = 1_000_000_000
"""Nanoseconds between two samples of the clocks, at least."""

MOST_SAMPLES = 600
READS = 3


class _Sample(NamedTuple):
    at: int
    offset: int


class WallClock:
    """Converts nanoseconds of the records' clock to nanoseconds since 1970 (UTC by the system's clock).

    The offset between the two clocks changes when the system's clock is set or slewed. It also changes when
    the machine is suspended, because CLOCK_MONOTONIC stops then (kernel/time/timekeeping.c). The clocks are
    therefore sampled once a second while they are in use, and the samples of at least the last ten minutes
    are kept. A timestamp gets the offset of the nearest sample. Call ``refresh`` when events are read, so
    that events that wait in a queue still get the offset of their own time. Within half a second of a sudden
    change, the offset from the wrong side of it may be used.

    ``records`` reads the records' clock, ``wall`` the system's. Any thread may call the methods. It needs no
    lock: the samples are replaced as a whole, so at worst one is lost.
    """

    def __init__(
        self, records: Callable[[], int] = time.monotonic_ns, wall: Callable[[], int] = time.time_ns
    ) -> None:
        self._records = records
        self._wall = wall
        self._samples: tuple[_Sample, ...] = (self._look(),)

    def now(self) -> int:
        """The current wall time."""
        return self._wall()

    def unix_ns(self, moment: int) -> int:
        """The wall time of a timestamp of the records' clock. Costs 0.3 µs."""
        self.refresh()
        samples = self._samples
        if moment >= samples[-1].at:
            return moment + samples[-1].offset
        after = bisect_left(samples, (moment,))
        if after == 0:
            return moment + samples[0].offset
        before, later = samples[after - 1], samples[after]
        return moment + (later if later.at - moment <= moment - before.at else before).offset

    def refresh(self) -> None:
        """Sample the clocks if the last sample is at least a second old."""
        if self._records() - self._samples[-1].at >= PAUSE:
            self._samples = (*self._samples[1 - MOST_SAMPLES :], self._look())

    def _look(self) -> _Sample:
        """Take the median of several samples: the thread may be interrupted between the reads of one."""
        found = []
        for _ in range(READS):
            before, wall, after = self._records(), self._wall(), self._records()
            found.append(_Sample((before + after) // 2, wall - (before + after) // 2))
        found.sort(key=lambda sample: sample.offset)
        return found[READS // 2]
