"""The ids that this process's threads have in the kernel's events."""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.tracefs.instance import Instance

log = logging.getLogger(__name__)

TASKS = Path("/proc/self/task")

FOLLOWED = "set_ftrace_notrace_pid"
"""The threads that the function tracer leaves out. With ``function-fork`` the kernel adds the threads that
they start and removes those that end (ftrace_pid_follow_sched_process_fork, kernel/trace/ftrace.c). The list
has the ids of the initial PID namespace, and does not affect events."""


class OwnThreads:
    """Returns the ids of this process's threads, at each call: of those alive, and of those at the last call.

    A thread that has ended may have left events that were not read yet. ``tid`` is the calling thread's id in
    the kernel's events. In a PID namespace of its own the process knows only other ids, so there the kernel
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
