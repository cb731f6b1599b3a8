"""The request to stop: a flag that a signal handler may set, and that the main thread waits for."""

import os
import select


class Stop:
    """Set once, by anybody: a signal handler, any thread; never taken back.

    Not a threading.Event: that takes a lock in ``set``, and a second signal that arrives while the first
    one's handler holds it would wait for itself for ever. A write to an eventfd takes none.
    """

    def __init__(self) -> None:
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC)
        self._set = False

    def set(self) -> None:
        self._set = True
        os.eventfd_write(self._eventfd, 1)

    def is_set(self) -> bool:
        return self._set

    def wait(self) -> None:
        """Return when it is set, at once if it is already."""
        while not self._set:
            select.select([self._eventfd], [], [])
