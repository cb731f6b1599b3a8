"""The host's ids of threads, by their ids in the PID namespace of this process."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress

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
    (do_wait() of kernel/exit.c), before it finds that the thread is not its child (ECHILD). Nothing happens
    to the thread. Costs two system calls a thread. ``instance`` must record nothing else.
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
