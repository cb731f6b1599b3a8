"""Work that may hang, such as a look at a container's or the host's file: done by threads, with a deadline.

A file system that does not answer (NFS, FUSE, a driver of volumes) blocks a system call for good, and nothing
ends that. So the thread that hangs is left behind, and its source is refused until it comes back.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from errno import ETIMEDOUT
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from kprobe_exporter.util.overruns import OVERRUNS, Kind, Overruns

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


class NotBegun(TimeoutError):
    """The work was not begun: its source is refused, or the agent stops."""

    def __init__(self) -> None:
        super().__init__(ETIMEDOUT, NO_ANSWER)


def process_root(path: str) -> str | None:
    """Return the root of a process at the beginning of a path, ``/proc/PID/root``; None if there is none."""
    found = _PROCESS_ROOT.match(path)
    return None if found is None else found[0]


class Deadlines:
    """Runs work for sources, each of which may hang. Any thread may call it; they take turns.

    One thread does all work, and another one takes its place where it hangs: the agent's threads have to live
    for some rounds of the reader, so that their activity is known to be the agent's own.
    With ``only_stalls`` the deadline begins anew whenever the thread gets on with its work: it then limits
    how long a file system may keep silent, and neither slow disks nor long computations.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        only_stalls: bool = False,
        overruns: Overruns = OVERRUNS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kind, self._only_stalls = kind, only_stalls
        self._overruns, self._clock = overruns, clock
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._spent: Callable[[], float] = lambda: 0.0  # the processor time of the thread that works
        self._hanging: set[str] = set()
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
            return sorted({*map(str, self._overruns.sources(self._kind)), *self._hanging})

    def run(self, source: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises; TimeoutError if that takes too long.

        Work that was given up goes on in its thread: it must change nothing that others use. NotBegun is
        raised if the work was not begun.
        """
        with self._turn:
            if self._stopping() or len(self._hanging) >= MOST_HANGING or self._refuses(source):
                raise NotBegun
            done: Future[T] = Future()

            def job() -> None:
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
                with self._lock:
                    self._hanging.discard(source)

            if self._thread is None or not self._thread.is_alive():  # it has not survived a fork
                self._thread, self._jobs = self._worker()
            self._jobs.put(job)
            began = self._clock()
            self._left = min(DEADLINE_S, self._left + (began - self._refilled) * WAIT_SHARE)
            self._wait(done, max(LEAST_S, self._left))
            self._refilled = self._clock()
            with self._lock:
                if done.done():
                    return done.result()
                self._left = max(0.0, self._left - (self._refilled - began))
                self._hanging.add(source)
            if not self._stopping():
                self._overruns.add(self._kind, source, f"{source}: {NO_ANSWER}")
            self._jobs.put(_end)
            self._thread = None
            raise TimeoutError(ETIMEDOUT, NO_ANSWER)

    def _refuses(self, source: str) -> bool:
        with self._lock:
            return source in self._hanging or self._overruns.refused(self._kind, source)

    def _wait(self, done: "Future[T]", seconds: float) -> None:
        """Wait until the work is done, the deadline is over, or the agent stops."""
        until, spent = time.monotonic() + seconds, -1.0
        while not done.done() and not self._stopping() and (left := until - time.monotonic()) > 0:
            with suppress(TimeoutError):
                done.exception(min(STOP_S, left))
            if self._only_stalls and (now := self._spent()) != spent:
                until, spent = time.monotonic() + seconds, now

    def _worker(self) -> "tuple[threading.Thread, SimpleQueue[Callable[[], object]]]":
        """Start the thread that works, and return it with its queue."""
        jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        thread = threading.Thread(target=_do, args=[jobs], name="kprobe-files", daemon=True)
        thread.start()
        assert thread.ident is not None
        self._spent = partial(time.clock_gettime, time.pthread_getcpuclockid(thread.ident))
        return thread, jobs


def _end() -> None:
    """Be the last job of a thread."""


def _do(jobs: "SimpleQueue[Callable[[], object]]") -> None:
    while (job := jobs.get()) is not _end:
        job()


CONTAINERS = Deadlines("container")
"""Looks into containers, and into other roots of processes."""

HOST_FILES = Deadlines("path", only_stalls=True)
"""Looks at files of the host, whose owners may have large programs on slow disks."""


def answered(path: str, work: Callable[[], T]) -> T:
    """Return what ``work`` finds out about a path, or raise what it raises; TimeoutError if that hangs."""
    if (root := process_root(path)) is None:
        return HOST_FILES.run(path, work)
    return CONTAINERS.run(root, work)
