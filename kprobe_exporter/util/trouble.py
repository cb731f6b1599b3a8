"""Which failures to log of something that may fail many times in a row."""

import time
from collections.abc import Callable


class Trouble:
    """Failures of one kind, of which only the first in a row is worth a line of the log. Not thread-safe.

    After a success the next failure is logged again, but at most one in ``quiet`` seconds.
    """

    def __init__(self, quiet: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet, self._clock = quiet, clock
        self._lasts = False
        self._logged = float("-inf")

    def failed(self) -> bool:
        """Note a failure; return whether to log it."""
        if self._lasts or self._clock() - self._logged < self._quiet:
            return False
        self._lasts, self._logged = True, self._clock()
        return True

    def succeeded(self) -> bool:
        """Note a success; return whether it ends failures that were logged."""
        ended, self._lasts = self._lasts, False
        return ended
