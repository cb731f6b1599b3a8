"""The /proc that numbers threads as the kernel's events do, and the namespaces of this process."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

INITIAL = "pid:[4026531836]"
"""The initial pid namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h); events number threads in it."""

KTHREADD = 2
"""The process id of the parent of all kernel threads, in the initial pid namespace (init/main.c)."""

PF_KTHREAD = 0x00200000
"""The flag of kernel threads in /proc/PID/stat (include/linux/sched.h), which any process may read."""

FLAGS = 6
"""The index of the flags in /proc/PID/stat behind the name (proc_pid_stat(5))."""


HOST_IDS = (
    "Set hostPID: true or docker run --pid=host, or mount the host's /proc at any path "
    "(docker run -v /proc:/host/proc:ro)"
)
"""The advice for a process that does not see the threads of events."""


def host_proc(proc: Path = Path("/proc")) -> Path | None:
    """Return a procfs that has threads under the ids of events; None if this process sees none.

    In the initial pid namespace that is ``proc``. In another one it is the host's /proc, if a container has
    it mounted at any path.
    """
    if namespace(proc, "pid") == INITIAL:
        return proc
    return next(filter(_has_kernel_threads, mounts(proc, "proc")), None)


def mounts(proc: Path, kind: str) -> Iterator[Path]:
    """Yield the places where the root of a file system of this kind is mounted (proc_pid_mountinfo(5))."""
    mountinfo = ""
    with suppress(OSError):
        mountinfo = (proc / "self/mountinfo").read_text(errors="surrogateescape")
    for line in mountinfo.split("\n"):
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if tail.startswith(f"{kind} ") and len(fields) > 4 and fields[3] == "/":
            yield Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4]))


def _has_kernel_threads(proc: Path) -> bool:
    """Return whether a procfs has kernel threads, which only that of the initial pid namespace does."""
    with suppress(OSError, ValueError, IndexError):
        stat = (proc / str(KTHREADD) / "stat").read_bytes()
        return bool(int(stat.rpartition(b") ")[2].split()[FLAGS]) & PF_KTHREAD)
    return False


def namespace(proc: Path, name: str) -> str | None:
    """Return the agent's own namespace of this kind, in the form of INITIAL; None if that is unknown."""
    with suppress(OSError):
        return str((proc / "self/ns" / name).readlink())
    return None


def names(directory: Path | str) -> Iterator[str]:
    """Yield the names that are found before the directory disappears; none if it cannot be opened."""
    with suppress(OSError), os.scandir(directory) as entries:
        yield from (entry.name for entry in entries)
