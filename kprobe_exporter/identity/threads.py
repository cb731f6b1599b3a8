"""A thread's name and process by its id: from /proc while it lives, else from what the kernel saved."""

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from kprobe_exporter.identity.procfs import host_proc
from kprobe_exporter.identity.saved_tgids import SavedTgids
from kprobe_exporter.model.values import COMM_BYTES

MOST_THREADS = 16_384
FRESH = 5.0
"""Seconds for which an answer is cached, because ids are reused and names change."""

SCAN_PAUSE = 0.1
"""Seconds between two readings of saved_cmdlines, and between two questions about an unknown thread."""

MOST_PARENTS = 64  # Threads that started each other, of which only the first one's process is known

CLONE_THREAD = 0x1_0000  # include/uapi/linux/sched.h

UNKNOWN = b"<...>"
"""The kernel's word for a saved thread whose name it no longer has."""

WORKER = re.compile(rb"kworker/(?:R-[^+]*|[^+-]*)")
"""/proc adds to a worker's name what it works for, ``kworker/0:1-events`` (wq_worker_comm() of
kernel/workqueue.c), and shows a kernel thread's whole name (proc_task_name() of fs/proc/array.c)."""

T = TypeVar("T")

TGID = re.compile(rb"^Tgid:\t(\d{1,10})$", re.MULTILINE)


class SavedFiles(Protocol):
    """The top-level files of tracefs."""

    def read(self, path: str) -> bytes: ...
    def open_pipe(self, path: str) -> int: ...


def living(proc: Path = Path("/proc")) -> dict[int, bytes]:
    """Return the names of all threads that live, by id. Costs about 20 µs a thread."""
    found: dict[int, bytes] = {}
    place = host_proc(proc)
    for process in _numbers(place) if place is not None else ():
        for task in _numbers(process / "task"):
            with suppress(OSError):  # it may have ended
                found[int(task.name)] = _as_in_events((task / "comm").read_bytes())
    return found


def _numbers(directory: Path) -> list[Path]:
    """Return what has a number as its name; nothing if the process has ended, for which glob() fails."""
    with suppress(OSError):
        return [directory / name for name in os.listdir(directory) if name.isdigit()]
    return []


def _as_in_events(text: bytes) -> bytes:
    """Return the name as events have it, without what /proc adds to a worker's."""
    shown = text.removesuffix(b"\n")
    worker = WORKER.match(shown)
    return (worker[0] if worker else shown)[:COMM_BYTES]


class Threads:
    """Looks threads up; the reader's thread owns it.

    A look-up costs about 20 µs, once in FRESH seconds a thread. A thread whose start was recorded is known
    from then on: see ``started``. If the host's /proc is missing, only that and the kernel's saved files
    serve: saved_cmdlines, of the last 128 threads, and saved_tgids, while option record-tgid is on. Without
    ``searches`` the latter is never read.
    """

    def __init__(
        self,
        files: SavedFiles,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        *,
        searches: bool = True,
    ) -> None:
        self._proc = host_proc(proc)
        self._clock = clock
        self._files = files
        self._scanned = float("-inf")
        self._saved: Mapping[int, bytes] = {}
        self._comms: _Answers[bytes] = _Answers(clock, self._living_comm, self._saved_comm)
        # By thread, one of the same process: of threads whose start was recorded.
        self._parents: dict[int, int] = {}
        self._search = SavedTgids(files.open_pipe).find if searches else lambda tid: None
        self._tgids: _Answers[int] = _Answers(clock, self._living_tgid, self._saved_tgid)

    def started(self, parent: int, child: int, clone_flags: int) -> None:
        """Learn the process of a new thread from the event of its start, before it is asked for.

        Events of several CPUs may come in any order, so the parent's own start may be unknown yet.
        """
        self._parents.pop(child, None)
        if not clone_flags & CLONE_THREAD:
            self._tgids.learn(child, child)
            return
        self._tgids.forget(child)
        while len(self._parents) >= MOST_THREADS:
            del self._parents[next(iter(self._parents))]
        self._parents[child] = parent

    def comm(self, tid: int) -> bytes | None:
        """Return the thread's present or last name; None if unknown."""
        return b"<idle>" if tid == 0 else self._comms.get(tid)

    def tgid(self, tid: int) -> int | None:
        """Return the id of the thread's process; None if unknown."""
        return 0 if tid == 0 else self._tgids.get(tid)

    def _living_comm(self, tid: int) -> bytes | None:
        text = self._of(tid, "comm")
        return None if text is None else _as_in_events(text)

    def _living_tgid(self, tid: int) -> int | None:
        found = TGID.search(self._of(tid, "status") or b"")
        return int(found[1]) if found else None

    def _saved_comm(self, tid: int) -> bytes | None:
        now = self._clock()
        if now - self._scanned >= SCAN_PAUSE:
            self._saved, self._scanned = {}, now
            with suppress(OSError):
                self._saved = parse_comms(self._files.read("saved_cmdlines"))
        return self._saved.get(tid)

    def _saved_tgid(self, tid: int) -> int | None:
        for _ in range(MOST_PARENTS):
            if (parent := self._parents.get(tid)) is None:
                break
            if (known := self._tgids.known(parent)) is not None:
                return known
            tid = parent
        return self._living_tgid(tid) or self._search(tid)

    def _of(self, tid: int, name: str) -> bytes | None:
        with suppress(OSError):
            return (self._proc / str(tid) / name).read_bytes() if self._proc is not None else None
        return None


class _Answers(Generic[T]):
    """A bounded cache over two sources: ``living`` of living threads, ``saved`` of those that have ended."""

    def __init__(
        self,
        clock: Callable[[], float],
        living: Callable[[int], T | None],
        saved: Callable[[int], T | None],
    ) -> None:
        self._clock, self._living, self._saved = clock, living, saved
        self._known: dict[int, tuple[T | None, float]] = {}

    def get(self, tid: int) -> T | None:
        now = self._clock()
        known, since = self._known.get(tid, (None, float("-inf")))
        if now - since < (SCAN_PAUSE if known is None else FRESH):
            return known
        found = self._living(tid)
        if found is None:
            found = self._saved(tid) if known is None else known
        self.learn(tid, found)
        return found

    def known(self, tid: int) -> T | None:
        """Return the last answer, None if it is unknown or forgotten."""
        return self._known.get(tid, (None, 0.0))[0]

    def forget(self, tid: int) -> None:
        """Let the next question be the first one."""
        self._known.pop(tid, None)

    def learn(self, tid: int, answer: T | None) -> None:
        """Take an answer for the present one."""
        self._known.pop(tid, None)
        while len(self._known) >= MOST_THREADS:
            del self._known[next(iter(self._known))]
        self._known[tid] = answer, self._clock()


def parse_comms(text: bytes) -> dict[int, bytes]:
    """Parse ``saved_cmdlines``, a thread and its name a line; return the names that cannot be forged.

    A thread chooses its name freely, up to 15 bytes, line ends and other threads' ids included. So a line
    that may be the rest of an earlier name is omitted, and so is the thread with that name.
    """
    names: dict[int, bytes] = {}
    doubtful: set[int] = set()
    reaching: list[tuple[int, int]] = []  # threads whose names may continue, and by how many bytes
    for line in text.removesuffix(b"\n").split(b"\n") if text else ():
        reaching = [(tid, left - len(line) - 1) for tid, left in reaching if left > len(line)]
        doubtful.update(tid for tid, _ in reaching)
        found = re.fullmatch(rb"(\d{1,10}) (.*)", line, re.DOTALL)
        if found is None:
            continue
        tid, name = int(found[1]), found[2]
        if reaching or tid in names or len(name) > COMM_BYTES:
            doubtful.add(tid)
        names[tid] = name
        reaching.append((tid, COMM_BYTES - len(name)))
    return {tid: name for tid, name in names.items() if tid not in doubtful and name != UNKNOWN}
