"""The processes of threads that have ended, as the kernel saved them: searched by a thread of its own.

``saved_tgids`` has a line for each thread that ran since option record-tgid was set: up to pid_max of them,
4,194,304 on 64-bit machines, which take the kernel and this process seconds. The thread that reads events
cannot wait for that.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

FILE = "saved_tgids"

MOST_BYTES = 1 << 24  # Of the file. That is a million threads.
MOST_KEPT = 16_384  # Threads of one search that are kept besides those that were asked for
MOST_WANTED = 4096  # Threads that are searched for at a time

CHUNK = 1 << 16
LONGEST = 22  # Bytes of a line: two ids of up to 10 digits, a blank and the line's end

FRESH = 0.1  # Seconds for which a search is not repeated
IDLE = 9  # Seconds of rest after each second of searching

MOST_WAIT, WAIT_SHARE = 0.05, 0.05
"""Seconds that the caller waits for a search, at a time and of each second. A usual file takes 5 ms."""


class SavedTgids:
    """Searches for threads. ``open_file`` returns a descriptor of a file of tracefs.

    One thread calls ``find``, which starts the thread that searches. It waits for a search for a short while
    only; then the thread stays unknown until it is asked for again.
    """

    def __init__(self, open_file: Callable[[str], int]) -> None:
        self._open_file = open_file
        self._changed = threading.Condition()
        self._wanted: set[int] = set()
        self._found: Mapping[int, int] = {}
        self._searched = float("-inf")
        self._patience, self._refilled = MOST_WAIT, time.monotonic()
        self._started = False

    def find(self, tid: int) -> int | None:
        """Return the process of a thread; None if it is unknown, or if the search takes long."""
        now = time.monotonic()
        self._patience = min(MOST_WAIT, self._patience + (now - self._refilled) * WAIT_SHARE)
        self._refilled = now
        with self._changed:
            fresh = now - self._searched < FRESH
            if (fresh and tid in self._found) or len(self._wanted) >= MOST_WANTED:
                return self._found.get(tid)
            self._wanted.add(tid)
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="kprobe-tgids", daemon=True).start()
            self._changed.notify_all()
            if fresh:
                return None
            self._changed.wait_for(lambda: tid not in self._wanted, self._patience)
            self._patience = max(0.0, self._patience - (time.monotonic() - now))
            return self._found.get(tid)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    self._started = False
                    return
                wanted = set(self._wanted)
            began = time.monotonic()
            found: Mapping[int, int] = {}
            with suppress(OSError):
                found = search(self._open_file(FILE), wanted)
            with self._changed:
                self._found, self._searched = found, time.monotonic()
                self._wanted -= wanted
                self._changed.notify_all()
            time.sleep(max(FRESH, IDLE * (self._searched - began)))


def search(file: int, wanted: set[int]) -> dict[int, int]:
    """Return the processes of these threads, and of some others, from an open file; close it."""
    found: dict[int, int] = {}
    with open(file, "rb", buffering=0) as lines:
        rest, read = b"", 0
        while read < MOST_BYTES and (data := lines.read(CHUNK)):
            read += len(data)
            whole, _, rest = (rest + data).rpartition(b"\n")
            rest = rest[: LONGEST + 1]
            for tid, tgid in parse_tgids(whole).items():
                if tid in wanted or len(found) < MOST_KEPT:
                    found[tid] = tgid
    return found


def parse_tgids(text: bytes) -> dict[int, int]:
    """Parse ``saved_tgids``: a thread and its process a line (kernel/trace/trace_sched_switch.c)."""
    return {int(tid): int(tgid) for tid, tgid in re.findall(rb"^(\d{1,10}) (\d{1,10})$", text, re.MULTILINE)}
