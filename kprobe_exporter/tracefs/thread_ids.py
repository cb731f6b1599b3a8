"""The ids of threads in the kernel's events: of this process, and of others in its PID namespace."""

import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.errors import TracefsError
from kprobe_exporter.tracefs.instance import Instance

WAIT = "events/sched/sched_process_wait/enable"

BUFFER_KIB, BATCH = 64, 100
"""The ring buffer has room for more events than one batch of threads makes."""

HOST_ID = re.compile(rb"sched_process_wait: .* pid=(\d+) prio=-?\d+$", re.MULTILINE)
"""The end of an event's line (include/trace/events/sched.h), behind the caller's name, an arbitrary text."""


class HostIds:
    """Asks the kernel for the ids of threads in the initial PID namespace, which events have.

    waitid(2) looks a thread up in the caller's namespace and writes its host's id to sched:sched_process_wait
    (do_wait() of kernel/exit.c). Only then it finds that the thread is not its child (ECHILD). Nothing
    happens to the thread. Costs two system calls a thread. ``instance`` must record nothing else.
    """

    def __init__(self, instance: Instance) -> None:
        """Raises TracefsError or OSError."""
        self._instance = instance
        instance.set_up(BUFFER_KIB, record_tgid=False)
        instance.write("set_event_pid", f"{instance.own_tid()}\n")
        instance.write(WAIT, "1")

    def of(self, tids: Iterable[int]) -> dict[int, int]:
        """Return the host's id of each thread that lives. Raises TracefsError or OSError."""
        asked, found = sorted(tids), dict[int, int]()
        for at in range(0, len(asked), BATCH):
            batch = asked[at : at + BATCH]
            for tid in batch:
                with suppress(ChildProcessError):
                    os.waitid(os.P_PID, tid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            told = [int(number) for number in HOST_ID.findall(self._instance.read_pipe())]
            if len(told) != len(batch):
                raise TracefsError(f"the kernel does not report the host's ids of {len(batch)} threads.")
            found |= {tid: number for tid, number in zip(batch, told, strict=True) if number}
        return found


TASKS = Path("/proc/self/task")

FOLLOWED = "set_ftrace_notrace_pid"
"""The threads that the function tracer excludes. If ``function-fork`` is set, the kernel adds the threads
that they start and removes those that end (ftrace_pid_follow_sched_process_fork, kernel/trace/ftrace.c). The
list has the ids of the initial PID namespace, and does not affect events."""


class OwnThreads:
    """Returns the ids of this process's threads, at each call: of those alive, and of those at the last call.

    A thread that has ended may have left events that were not read yet. ``tid`` is the calling thread's id in
    the kernel's events. In a PID namespace of its own, the process knows only other ids. So there the kernel
    keeps the list, which costs a few ns a context switch. Raises OSError if it cannot. Not thread-safe.
    """

    def __init__(self, instance: Instance, tid: int) -> None:
        self._read: Callable[[], frozenset[int]] = _tasks
        if tid != threading.get_native_id() or not TASKS.is_dir():
            instance.write("options/function-fork", "1")
            instance.write(FOLLOWED, f"{tid}\n")
            self._read = lambda: frozenset(map(int, instance.read(FOLLOWED).split()))
        self._last: frozenset[int] = frozenset()

    def __call__(self) -> frozenset[int]:
        before, now = self._last, self._last
        with suppress(OSError):  # as without descriptors: the threads are mostly the same
            now = self._read()
        self._last = now
        return before | now


def _tasks() -> frozenset[int]:
    return frozenset(map(int, os.listdir(TASKS)))
