"""A token bucket: a rate that may be exceeded for a short time."""


class TokenBucket:
    """``rate`` tokens a second, with room for ``burst``; it starts full. Not thread-safe.

    ``level`` is the number of tokens left. Times are seconds of a clock that never goes back. A caller
    may take tokens that are not there by lowering ``level`` below 0.
    """

    __slots__ = ("_at", "burst", "level", "rate")

    def __init__(self, rate: float, burst: float, now: float = 0.0) -> None:
        self.rate, self.burst = rate, burst
        self.level, self._at = burst, now

    def refill(self, now: float) -> float:
        """Add the tokens since the last call, and return ``level``."""
        self.level = min(self.burst, self.level + (now - self._at) * self.rate)
        self._at = now
        return self.level

    def take(self, now: float) -> bool:
        """Take a token; return False, and take none, if less than one is left."""
        if self.refill(now) < 1:
            return False
        self.level -= 1
        return True
