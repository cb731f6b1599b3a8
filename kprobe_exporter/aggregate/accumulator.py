"""A counter that never goes down, fed by a kernel counter that restarts when its probe is recreated."""


class Accumulator:
    """Sums the increases of a raw counter. Not thread-safe: the aggregator's lock guards it."""

    __slots__ = ("_last", "total")

    def __init__(self) -> None:
        self.total = 0
        self._last = 0

    def update(self, raw: int) -> None:
        """Take the current raw value. If it is lower than the last one, the raw counter restarted from 0."""
        self.total += raw - self._last if raw >= self._last else raw
        self._last = raw

    def restart(self) -> None:
        """Expect another raw counter from now on, which begins at 0."""
        self._last = 0
