"""The command lines of processes, read by a thread that may wait: the reader of events must not.

The kernel reads it under the lock of the process's memory map (get_mm_cmdline() of fs/proc/base.c). A process
holds that for seconds while it forks with much memory, and can do so on purpose.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from kprobe_exporter.identity.processes import command_line

MAX_WAIT_S, WAIT_SHARE = 0.05, 0.05
"""Seconds that the caller waits for a command line, at a time and of each second."""

MAX_THREADS = 8
"""Threads that wait for a process. While there are as many, command lines are unknown."""


class CommandLines:
    """Reads command lines; one thread calls it. A line that does not come soon is unknown."""

    def __init__(self, read: Callable[[int], bytes | None] = command_line) -> None:
        self._read = read
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._last: Future[bytes | None] | None = None
        self._left, self._refilled = MAX_WAIT_S, time.monotonic()

    def __call__(self, directory: int) -> bytes | None:
        """Return the line by the descriptor of ``/proc/PID``; None if it is unknown or does not come soon."""
        now = time.monotonic()
        self._left = min(MAX_WAIT_S, self._left + (now - self._refilled) * WAIT_SHARE)
        self._refilled = now
        if not self._is_free():
            return None
        self._last = done = Future[bytes | None]()
        own = os.dup(directory)

        def job() -> None:
            try:
                done.set_result(self._read(own))
            except OSError:
                done.set_result(None)
            finally:
                os.close(own)

        self._jobs.put(job)
        try:
            return done.result(self._left)
        except TimeoutError:
            return None
        finally:
            self._left = max(0.0, self._left - (time.monotonic() - now))

    def _is_free(self) -> bool:
        """Start another thread if the last one still waits. Return False if too many wait."""
        if self._last is not None and self._last.done():
            return True
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= MAX_THREADS:
            return False
        self._jobs.put(None)  # for the one that waits
        self._jobs = SimpleQueue()
        thread = threading.Thread(target=_work, args=[self._jobs], name="kprobe-argv", daemon=True)
        thread.start()
        self._threads.append(thread)
        return True


def _work(jobs: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
