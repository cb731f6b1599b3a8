"""A thread's name and process by its id: from /proc while it lives, else from what the kernel saved."""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from kprobe_exporter.identity.procfs import host_proc
from kprobe_exporter.model.values import COMM_BYTES

MOST_THREADS = 16_384
FRESH = 5.0
"""Seconds for which an answer is cached, because ids are reused and names change."""

SCAN_PAUSE = 0.1
"""Seconds between two readings of a saved file, which lists all threads."""

UNKNOWN = b"<...>"
"""What the kernel writes for a saved thread whose name it no longer has."""

WORKER = re.compile(rb"kworker/(?:R-[^+]*|[^+-]*)")
"""/proc adds to a worker's name what it works for, ``kworker/0:1-events`` (wq_worker_comm() of
kernel/workqueue.c), and shows a kernel thread's whole name (proc_task_name() of fs/proc/array.c)."""

T = TypeVar("T")

TGID = re.compile(rb"^Tgid:\t(\d{1,10})$", re.MULTILINE)


class Threads:
    """Looks threads up; the reader's thread owns it.

    ``read`` returns a top-level file of tracefs. A look-up costs about 20 µs, once in FRESH seconds a thread.
    Without the host's /proc, only the kernel's saved files serve: saved_cmdlines, of the last 128 threads,
    and saved_tgids, while option record-tgid is on.
    """

    def __init__(
        self,
        read: Callable[[str], bytes],
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = host_proc(proc)
        self._comms: _Answers[bytes] = _Answers(clock, lambda: parse_comms(read("saved_cmdlines")))
        self._tgids: _Answers[int] = _Answers(clock, lambda: parse_tgids(read("saved_tgids")))

    def comm(self, tid: int) -> bytes | None:
        """Return the thread's present or last name; None if unknown."""
        return b"<idle>" if tid == 0 else self._comms.get(tid, self._living_comm)

    def tgid(self, tid: int) -> int | None:
        """Return the id of the thread's process; None if unknown."""
        return 0 if tid == 0 else self._tgids.get(tid, self._living_tgid)

    def _living_comm(self, tid: int) -> bytes | None:
        """Return the name as events have it, without what /proc adds to a worker's."""
        text = self._of(tid, "comm")
        if text is None:
            return None
        shown = text.removesuffix(b"\n")
        worker = WORKER.match(shown)
        return (worker[0] if worker else shown)[:COMM_BYTES]

    def _living_tgid(self, tid: int) -> int | None:
        found = TGID.search(self._of(tid, "status") or b"")
        return int(found[1]) if found else None

    def _of(self, tid: int, name: str) -> bytes | None:
        with suppress(OSError):
            return (self._proc / str(tid) / name).read_bytes() if self._proc is not None else None
        return None


class _Answers(Generic[T]):
    """A bounded cache over two sources: one for a single living thread, and a file of all saved threads."""

    def __init__(self, clock: Callable[[], float], scan: Callable[[], Mapping[int, T]]) -> None:
        self._clock = clock
        self._scan = scan
        self._scanned = float("-inf")
        self._saved: Mapping[int, T] = {}
        self._known: dict[int, tuple[T | None, float]] = {}

    def get(self, tid: int, living: Callable[[int], T | None]) -> T | None:
        now = self._clock()
        known, since = self._known.get(tid, (None, float("-inf")))
        if now - since < (SCAN_PAUSE if known is None else FRESH):
            return known
        found = living(tid)
        if found is None:
            if now - self._scanned >= SCAN_PAUSE:
                self._saved, self._scanned = {}, now
                with suppress(OSError):
                    self._saved = self._scan()
            found = self._saved.get(tid)
        if found is None and known is not None:
            return known
        self._known.pop(tid, None)
        while len(self._known) >= MOST_THREADS:
            del self._known[next(iter(self._known))]
        self._known[tid] = found, now
        return found


def parse_tgids(text: bytes) -> dict[int, int]:
    """Parse ``saved_tgids``: a thread and its process a line (kernel/trace/trace_sched_switch.c)."""
    return {int(tid): int(tgid) for tid, tgid in re.findall(rb"^(\d{1,10}) (\d{1,10})$", text, re.MULTILINE)}


def parse_comms(text: bytes) -> dict[int, bytes]:
    """Parse ``saved_cmdlines``, a thread and its name a line; return the names that cannot be forged.

    A thread chooses its name freely, up to 15 bytes, line ends and other threads' ids included. So a line
    that may be the rest of an earlier name is left out, and so is the thread with that name.
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
