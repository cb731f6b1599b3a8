"""Child processes for tests/kernel/capture.py: they open files, under names that are hard to parse."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.kernel_ids import kernel_tid

TRUE = Path("/bin/true").resolve()

Work = Callable[[], None]


# The kernel prints these strings unescaped, so a parser of lines must cope with them.
COMMS = (b"plain", b"a b-7 [001]: x", b'q" x="1', b"\xff\xfebytes", b"new\nline")
FORGED = b'x" comm="a"\n  forged-1       [000] .....     1.000001: cap_open: (f+0x0/0x1) dfd=1'
PATHS = (b"/dev/null", b"/nonexistent", b"/nonexistent/with space", b'/q" x="1', b"/\xff", FORGED)

_prctl = ctypes.CDLL(None, use_errno=True).prctl
PR_SET_NAME = 15


def _opens_as(comm: bytes, *paths: bytes) -> Work:
    def work() -> None:
        _rename(comm)
        for path in paths:
            _open(path)

    return work


def _thread() -> None:
    """Open a file in a second thread, whose id and name differ from those of its process."""

    def work() -> None:
        _rename(b"worker")
        _open(b"/nonexistent")

    _rename(b"main")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _exec() -> None:
    os.execv(TRUE, ["true"])


def few_opens() -> None:
    for path in PATHS[:2]:
        _open(path)


def flood() -> None:
    os.sched_setaffinity(0, {0})
    for _ in range(2000):
        _open(b"/nonexistent")


def _open(path: bytes) -> None:
    with suppress(OSError):
        os.close(os.open(path, os.O_RDONLY))


def _rename(comm: bytes) -> None:
    _prctl(PR_SET_NAME, comm, 0, 0, 0)


WORKS = [_opens_as(COMMS[0], *PATHS), *(_opens_as(comm, *PATHS[:2]) for comm in COMMS[1:])]
WORKS += [_thread, _exec]


class Child:
    """A forked process that waits for a call of ``work``, does its work, and ends."""

    def __init__(self, work: Work) -> None:
        wait, self._start = os.pipe()
        own, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._start)
                os.write(tell, str(kernel_tid()).encode())
                if os.read(wait, 1):
                    work()
            finally:
                os._exit(0)
        os.close(wait)
        os.close(tell)
        self.tid = int(os.read(own, 20))
        """The thread id that its events have."""
        os.close(own)

    def begin(self) -> None:
        os.write(self._start, b"x")

    def work(self) -> None:
        self.begin()
        os.waitpid(self.pid, 0)
        self.pid = 0

    def close(self) -> None:
        os.close(self._start)
        if self.pid:
            os.waitpid(self.pid, 0)


@contextmanager
def children(works: list[Work]) -> Iterator[list[Child]]:
    """Yield a forked, waiting child for each work; all have ended when the context is left."""
    with ExitStack() as stack:
        forked = []
        for work in works:
            forked.append(Child(work))
            stack.callback(forked[-1].close)
        yield forked
