"""The requests to stop and to reload: flags that a signal handler may set and the main thread waits for."""

import os
import select
from contextlib import suppress


class Shutdown:
    """Any thread or signal handler may set it, and it stays set. A reload may be requested repeatedly.

    A signal to stop makes ``signalled`` true. A second one makes ``gives_up`` true: the process ends without
    all that a stop does.

    It is not a threading.Event, whose ``set`` takes a lock: a second signal that arrives while the first
    one's handler holds the lock would deadlock. A write to a pipe takes no lock.

    Python runs a handler only when the main thread runs: a signal that arrives just before it blocks, or
    that the kernel delivers to another thread, would go unnoticed. So pass ``wake_up_fd`` to
    signal.set_wakeup_fd(): the byte that the signal writes there ends the wait, and the handler runs.
    """

    def __init__(self) -> None:
        self._read, self.wake_up_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._set = self._reload = self.signalled = self.gives_up = False
        self.recordings = 0
        """The requests for a recording so far; a thread looks at it several times a second."""

    def set(self) -> None:
        self._set = True
        self._wake()

    def signal(self) -> None:
        """Handle one signal to stop."""
        self.signalled, self.gives_up = True, self.signalled
        self.set()

    def ask_reload(self) -> None:
        """Make ``wait`` return. Signal handlers may call it; a request during a reload causes another one."""
        self._reload = True
        self._wake()

    def ask_recording(self) -> None:
        """Count one more request for a recording. Signal handlers may call it."""
        self.recordings += 1

    def is_set(self) -> bool:
        return self._set

    def wait(self) -> bool:
        """Return True when it is set, at once if it is already; False when a reload was requested, once for
        all requests so far. Only the main thread calls it."""
        while not self._set and not self._reload:
            select.select([self._read], [], [])
            with suppress(BlockingIOError):
                os.read(self._read, 4096)  # other signals wrote a byte, too
        self._reload = False
        return self._set

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self.wake_up_fd, b"\0")
