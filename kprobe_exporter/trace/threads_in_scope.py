"""The threads of a scope, and what /proc says of them."""

import re
import time
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.aggregate.stack_classes import UNACCOUNTED, stack_class
from kprobe_exporter.aggregate.thread_times import Observed
from kprobe_exporter.identity.procfs import KTHREADD
from kprobe_exporter.identity.thread_sets import processes, threads_of
from kprobe_exporter.model.stacks import Stack
from kprobe_exporter.probing.scope import LEFT, RECORDED, Scope
from kprobe_exporter.trace.session import TraceSession

SLEEPING = (b"S", b"D", b"I", b"T", b"t", b"P")
"""States of proc_pid_stat(5) of a thread that waits."""

_FRAME = re.compile(rb"^\[<[^>]*>\] ([^+\s]+)", re.MULTILINE)
"""A line of /proc/TID/stack: ``[<0>] pipe_read+0x34d/0x430`` (proc_pid_stack() in fs/proc/base.c)."""


class ThreadFiles:
    """The facts of /proc about threads, which events name by their ids on the host."""

    def __init__(self, proc: Path | None) -> None:
        self._proc = proc

    def observed(self, tid: int) -> Observed:
        """Return the state of a thread, and where it waits."""
        state = self._stat(tid)[:1]
        if state in SLEEPING:
            frames = self._stack(tid)
            return Observed(time.monotonic_ns(), stack_class(frames) if frames else UNACCOUNTED)
        return Observed(time.monotonic_ns(), None, self.ran(tid) if state == b"R" else None)

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

    def _stat(self, tid: int) -> bytes:
        return self._read(tid, "stat").rpartition(b") ")[2]

    def _stack(self, tid: int) -> Stack:
        return tuple(_FRAME.findall(self._read(tid, "stack")))

    def _read(self, tid: int, file: str) -> bytes:
        if self._proc is not None:
            with suppress(OSError):
                return (self._proc / str(tid) / file).read_bytes()
        return b""


class ScopeOfThreads:
    """Which threads are in the scope of a session now, by their ids on the host."""

    def __init__(self, session: TraceSession, scope: Scope, proc: Path | None) -> None:
        self._session, self._proc, self._everything = session, proc, not scope.narrows
        self._process = None if scope.children else scope.pid
        self.follows_threads = scope.tid is None
        self.follows_processes = self.follows_threads and self._process is None

    def follow(self) -> None:
        """Set the option event-fork: the kernel records new threads from their first event on."""
        if self._process is not None:
            self._session.instance.write("options/event-fork", "1")

    def threads(self) -> set[int]:
        """Return the threads that the kernel records. In the scope of one process, its children are none."""
        if self._everything:
            proc = self._proc or Path("/proc")
            return threads_of(proc, processes(proc))
        instance = self._session.instance
        listed = set(map(int, instance.read(RECORDED).split()))
        if instance.files.exists(f"{instance.path}/{LEFT}"):
            listed -= set(map(int, instance.read(LEFT).split()))
        if self._process is not None:
            found = threads_of(Path("/proc"), [self._process])
            translated = self._session.threads.translated
            listed &= {translated.get(tid, tid) for tid in found}
        return listed - {KTHREADD}
