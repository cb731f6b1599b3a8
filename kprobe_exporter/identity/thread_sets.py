"""Which threads a process, a process and its descendants, or a cgroup has now.

A listing is not atomic: a thread that starts meanwhile may be missing, so callers list again.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.identity.procfs import mounts, names

MEMBERS = ("cgroup.threads", "tasks")
"""The file of a cgroup that lists its threads: on version 2, and on version 1 (cgroups(7))."""

_PARENT = re.compile(rb" \S (\d{1,10}) ")
"""Field 4 of proc_pid_stat(5), after the name: the id of the parent."""

_REAL_UID = re.compile(rb"^Uid:\t(\d{1,10})\t", re.MULTILINE)
"""The first of the four user ids in proc_pid_status(5)."""


def processes(proc: Path) -> Iterator[int]:
    """Yield the ids of all processes, the lowest first."""
    return map(int, filter(str.isdecimal, names(proc)))


def threads_of(proc: Path, pids: Iterable[int]) -> set[int]:
    """Return the ids of the threads of these processes, without those that have ended."""
    return {int(tid) for pid in pids for tid in names(proc / str(pid) / "task")}


def with_descendants(proc: Path, pid: int) -> set[int]:
    """Return a process and the processes below it; one whose parent has ended is not found."""
    children: dict[int, list[int]] = {}
    for child in processes(proc):
        with suppress(OSError):
            stat = (proc / str(child) / "stat").read_bytes()
            if parent := _PARENT.match(stat.rpartition(b")")[2]):
                children.setdefault(int(parent[1]), []).append(child)
    found, left = {pid}, [pid]
    while left:
        new = [child for child in children.get(left.pop(), ()) if child not in found]
        found.update(new)
        left += new
    return found


def real_uid(proc: Path, pid: int) -> int | None:
    """Return the real user id of a process, None if it has ended."""
    with suppress(OSError):
        if uid := _REAL_UID.search((proc / str(pid) / "status").read_bytes()):
            return int(uid[1])
    return None


def cgroup_directory(path: str, proc: Path = Path("/proc")) -> Path | None:
    """Return the directory of a cgroup, None if there is none.

    ``path`` is that directory, or the cgroup's path as /proc/PID/cgroup shows it; the latter is looked for in
    the hierarchy of version 2 first.
    """
    places = [*mounts(proc, "cgroup2"), *mounts(proc, "cgroup")]
    below = path.strip("/")
    for directory in (Path(path).absolute(), *(place / below for place in places)):
        if any((directory / name).is_file() for name in MEMBERS):
            return directory
    return None


def cgroup_threads(directory: Path) -> set[int]:
    """Return the ids of the threads in a cgroup and in those below it; none once it is removed.

    A thread outside this process's PID namespace has no id here, and is omitted.
    """
    found: set[int] = set()
    for place, _, files in os.walk(directory):
        for name in set(MEMBERS).intersection(files):
            with suppress(OSError):
                found.update(map(int, Path(place, name).read_bytes().split()))
    return found - {0}
