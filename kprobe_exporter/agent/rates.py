"""How often each probe fired in the last minutes, for the status page."""

from collections import deque
from collections.abc import Mapping

STEP = 5.0
STEPS = 60
"""One rate every STEP seconds, STEPS of them: five minutes."""


class History:
    """The last rates of each probe, in hits a second. One thread updates it, any may read it."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._hits: dict[str, int] = {}
        self._rates: dict[str, deque[float]] = {}

    def update(self, now: float, hits: Mapping[str, int]) -> None:
        """Take the hits so far, at a time in seconds of a monotonic clock. It may be called at any rate."""
        seconds = now - self._since
        if seconds < STEP:
            return
        rates: dict[str, deque[float]] = {}
        for name, count in hits.items():
            rates[name] = self._rates.get(name) or deque(maxlen=STEPS)
            if name in self._hits:
                rates[name].append(max(0, count - self._hits[name]) / seconds)
        self._since, self._hits, self._rates = now, dict(hits), rates

    def rates(self, name: str) -> tuple[float, ...]:
        """Return the rates, oldest first; empty for a probe with fewer than two readings."""
        return tuple(self._rates.get(name, ()))
