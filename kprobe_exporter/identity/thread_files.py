"""Facts of /proc about threads: what they do, how long they ran, their names and processes."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.identity.cgroups import LINE
from kprobe_exporter.model.stacks import Stack
from kprobe_exporter.model.thread_times import ThreadState, Watched

SLEEPING = (b"S", b"D", b"I", b"T", b"t", b"P")
"""States of proc_pid_stat(5) of a thread that waits."""

_FRAME = re.compile(rb"^\[<[^>]*>\] ([^+\s]+)", re.MULTILINE)
"""A line of /proc/TID/stack: ``[<0>] pipe_read+0x34d/0x430`` (proc_pid_stack() in fs/proc/base.c)."""


class ThreadFiles:
    """The facts of /proc about threads, which events name by their ids on the host."""

    def __init__(self, proc: Path | None, reason_of: Callable[[Stack], str]) -> None:
        """``reason_of`` tells from a stack why the thread sleeps. An empty one may not be read."""
        self._proc, self._reason_of = proc, reason_of

    def observed(self, tid: int, since: int) -> Watched:
        """Return the state of a thread whose time is added up from ``since`` on, and why it sleeps."""
        state = self._stat(tid)[:1]
        if state in SLEEPING:
            reason = self._reason_of(self._stack(tid))
            return Watched(tid, since, ThreadState.ASLEEP, time.monotonic_ns(), reason)
        known = ThreadState.WAITING if state == b"R" else ThreadState.UNKNOWN
        return Watched(tid, since, known, time.monotonic_ns())

    def ran(self, tid: int) -> int | None:
        """Return the nanoseconds that a thread had a CPU in all (Documentation/scheduler/sched-stats)."""
        with suppress(ValueError):
            return int(self._read(tid, "schedstat").partition(b" ")[0])
        return None

    def lives(self, tid: int) -> bool:
        """Whether a thread has not ended."""
        return self._stat(tid)[:1] not in (b"", b"Z", b"X")

    def process(self, tid: int) -> int:
        """Return the process of a thread; that of an unknown one is itself."""
        found = re.search(rb"^Tgid:\s*([0-9]+)$", self._read(tid, "status"), re.MULTILINE)
        return int(found[1]) if found else tid

    def name(self, tid: int) -> bytes:
        """Return the name of a thread, empty for one that has ended."""
        return self._read(tid, "comm").removesuffix(b"\n")

    def cgroup(self, tid: int) -> bytes:
        """Return the path of a thread's cgroup in the hierarchy that gives out CPU time, empty if unknown."""
        found = b""
        for _, controllers, path in LINE.findall(self._read(tid, "cgroup")):
            if b"cpu" in controllers.split(b","):
                return bytes(path)
            found = found if controllers else bytes(path)
        return found

    def _stat(self, tid: int) -> bytes:
        return self._read(tid, "stat").rpartition(b") ")[2]

    def _stack(self, tid: int) -> Stack:
        return tuple(_FRAME.findall(self._read(tid, "stack")))

    def _read(self, tid: int, file: str) -> bytes:
        if self._proc is not None:
            with suppress(OSError):
                return (self._proc / str(tid) / file).read_bytes()
        return b""
