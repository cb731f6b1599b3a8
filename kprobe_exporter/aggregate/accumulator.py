"""Turning a kernel counter, which restarts when its probe is made again, into one that never goes down."""


class Accumulator:
    """Sums the increases of a raw counter. Not thread-safe: the aggregator's lock guards it."""

    __slots__ = ("_last", "total")

    def __init__(self) -> None:
        self.total = 0
        self._last = 0

    def update(self, raw: int) -> None:
        """Take the raw counter as it reads now. Lower than before means that it started again from 0."""
        self.total += raw - self._last if raw >= self._last else raw
        self._last = raw

    def restart(self) -> None:
        """From now on it is another raw counter, which begins at 0."""
        self._last = 0
