"""The largest value of a probe within a sliding window, with the labels of its event.

A window serves any number of scrapers: one that comes at least once in a window sees every value that was
read since its last scrape, if none was larger. A source hands over the largest value of each read, ten times
a second. A value is kept if it will be the largest one when the values before it leave the window:

    values read:   3  9  4  7  2          kept: 9 7 2, each until its window ends

Lemire, "Streaming maximum-minimum filter using no more than three comparisons per element", 2006.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kprobe_exporter.aggregate.recipes import whole_scale
from kprobe_exporter.aggregate.series import UNKNOWN, decoded
from kprobe_exporter.model.aggregation import RawKey, Tally
from kprobe_exporter.model.snapshot import WorstEvent
from kprobe_exporter.model.specs import WorstSpec

PARTS = 128
"""The parts of a window: the first of the falling values of one part stands for all of them."""


@dataclass(slots=True)
class _Kept:
    """A value that may become the largest one."""

    number: int
    """The value as it was recorded."""
    time: int
    """When it was recorded, in nanoseconds. Of equal values the latest is kept."""
    began: float
    """When it was read, by the monotonic clock."""
    last: float
    """When the last value was read for which it stands."""
    shown: WorstEvent


class WorstValues:
    """The largest values of the last ``spec.window`` seconds.

    A value counts from the moment at which it was read, for the window and at most 1/128 of it longer.
    No more than 130 values are kept. Not thread-safe: the aggregator's lock guards it.
    """

    def __init__(self, spec: WorstSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self._clock = clock
        self._kept: deque[_Kept] = deque()

    def is_like(self, spec: WorstSpec) -> bool:
        """Return whether values of ``spec`` can be compared with these, and count for as long."""
        return (self.spec.value, self.spec.scale, self.spec.window) == (spec.value, spec.scale, spec.window)

    def take(self, spec: WorstSpec) -> Callable[[Tally], None]:
        """Return the function that takes tallies of a probe that declared the value by this ``spec``."""
        scale = whole_scale(spec.scale)

        def add(tally: Tally) -> None:
            now = self._clock()
            self._expire(now)
            while self._kept and (self._kept[-1].number, self._kept[-1].time) <= (tally.sum, tally.time):
                self._kept.pop()
            if self._kept and self._kept[-1].number == tally.sum:  # it was read earlier, and is the later one
                self._kept[-1].last = now
                return
            if self._kept and now - self._kept[-1].began < spec.window / PARTS:
                self._kept[-1].last = now
                return
            shown = WorstEvent(tally.sum * scale, _texts(spec, tally.key), time.time())
            self._kept.append(_Kept(tally.sum, tally.time, now, now, shown))

        return add

    def largest(self) -> WorstEvent | None:
        """Return the largest value that counts now, None without one."""
        self._expire(self._clock())
        return self._kept[0].shown if self._kept else None

    def _expire(self, now: float) -> None:
        while self._kept and now - self._kept[0].last > self.spec.window:
            self._kept.popleft()


def _texts(spec: WorstSpec, key: RawKey) -> tuple[tuple[str, str], ...]:
    """Return the labels of an event by name, without those whose value is absent."""
    texts = [(label.name, decoded(label, value)[0]) for label, value in zip(spec.labels, key, strict=True)]
    return tuple((name, UNKNOWN if text is None else text) for name, text in texts if text != "")
