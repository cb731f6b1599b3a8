"""Work that may hang, such as a look into a container's file system: done by other threads, with a deadline.

A file system that does not answer (NFS, FUSE, a driver of volumes) blocks a system call for good, and nothing
ends that. So the thread that hangs is left behind, and its source is refused until it comes back.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from errno import ETIMEDOUT
from queue import SimpleQueue
from typing import TypeVar

from kprobe_exporter.util.overruns import OVERRUNS, REFUSED_S

T = TypeVar("T")

DEADLINE_S = 4.0
"""Seconds that the caller waits at a time, as long as its sources together have waited less than that."""

WAIT_SHARE = 0.05
"""Seconds of waiting that come back each second."""

LEAST_S = 0.1  # Seconds that the caller waits in any case. A file system that works answers sooner.
STOP_S = 0.1  # Seconds after which a request to stop ends a wait
MOST_HANGING = 64  # Threads that hang

NO_ANSWER = "its file system does not answer"

_PROCESS_ROOT = re.compile(r"/\S*?/[0-9]+/root(?=[:/])")


def process_root(path: str) -> str | None:
    """Return the root of a process at the beginning of a path, ``/proc/PID/root``; None if there is none."""
    found = _PROCESS_ROOT.match(path)
    return None if found is None else found[0]


class Deadlines:
    """Runs work for sources, each of which may hang. Any thread may call it; they take turns.

    One thread does all work, and another one takes its place where it hangs: the agent's threads have to live
    for some rounds of the reader, so that their activity is known to be the agent's own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._jobs: SimpleQueue[Callable[[], object]] | None = None
        self._hanging: set[str] = set()
        self._refused: dict[str, float] = {}  # until when
        self._left, self._refilled = DEADLINE_S, clock()
        self._stopping: Callable[[], bool] = lambda: False

    @contextmanager
    def until(self, stopping: Callable[[], bool]) -> Iterator[None]:
        """Give up work that does not end at once while ``stopping`` returns True and the context lasts."""
        before, self._stopping = self._stopping, stopping
        try:
            yield
        finally:
            self._stopping = before

    def refused(self) -> list[str]:
        """Return the sources that are refused now."""
        with self._lock:
            now = self._clock()
            self._refused = {
                source: until
                for source, until in self._refused.items()
                if now < until or source in self._hanging
            }
            return list(self._refused)

    def run(self, source: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises; TimeoutError if that takes too long.

        Work that was given up goes on in its thread: it must change nothing that others use.
        """
        with self._turn:
            if self._stopping() or source in self.refused() or len(self._hanging) >= MOST_HANGING:
                raise TimeoutError(ETIMEDOUT, NO_ANSWER)
            done: Future[T] = Future()

            def job() -> None:
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
                with self._lock:
                    self._hanging.discard(source)

            if self._jobs is None:
                self._jobs = SimpleQueue()
                threading.Thread(target=_do, args=[self._jobs], name="kprobe-containers", daemon=True).start()
            self._jobs.put(job)
            began = self._clock()
            self._left = min(DEADLINE_S, self._left + (began - self._refilled) * WAIT_SHARE)
            until = time.monotonic() + max(LEAST_S, self._left)
            while not done.done() and not self._stopping() and (left := until - time.monotonic()) > 0:
                wait([done], min(STOP_S, left))
            self._refilled = self._clock()
            with self._lock:
                if done.done():
                    return done.result()
                self._left = max(0.0, self._left - (self._refilled - began))
                self._hanging.add(source)
                self._refused[source] = self._refilled + REFUSED_S
            if not self._stopping():
                OVERRUNS.add("container", source, f"{source}: {NO_ANSWER}")
            self._jobs.put(_end)
            self._jobs = None
            raise TimeoutError(ETIMEDOUT, NO_ANSWER)


def _end() -> None:
    """Be the last job of a thread."""


def _do(jobs: "SimpleQueue[Callable[[], object]]") -> None:
    while (job := jobs.get()) is not _end:
        job()


CONTAINERS = Deadlines()
"""Looks into containers, and into other roots of processes."""
