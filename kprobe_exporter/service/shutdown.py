"""The requests to stop and to reload: flags that a signal handler may set, and the main thread waits for."""

import os
import select
from contextlib import suppress


class Stop:
    """Set once, by anybody: a signal handler, any thread; never taken back. A reload may be asked for often.

    Not a threading.Event: that takes a lock in ``set``, and a second signal that arrives while the first
    one's handler holds it would wait for itself for ever. A write to a pipe takes none.

    Python runs a handler only when the main thread gets to run: a signal that comes just before it
    blocks, or that the kernel gives to another thread, would go unnoticed. So ``wake_up_fd`` is for
    signal.set_wakeup_fd(): what the signal itself writes there ends the wait, and the handler runs.
    """

    def __init__(self) -> None:
        self._read, self.wake_up_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._set = self._reload = False

    def set(self) -> None:
        self._set = True
        self._wake()

    def ask_reload(self) -> None:
        """Have ``wait`` return; from a signal handler too. Asked for while one is done, it is done again."""
        self._reload = True
        self._wake()

    def is_set(self) -> bool:
        return self._set

    def wait(self) -> bool:
        """Return True when it is set, at once if it is already; False when a reload was asked for, once for
        all who have asked so far. For one thread, the main one."""
        while not self._set and not self._reload:
            select.select([self._read], [], [])
            with suppress(BlockingIOError):
                os.read(self._read, 4096)  # of signals that ask for something else
        self._reload = False
        return self._set

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self.wake_up_fd, b"\0")
