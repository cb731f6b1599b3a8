"""Which containers run on this machine, and in which processes, by /proc."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.identity.cgroups import LINE
from kprobe_exporter.identity.containers import Container, container
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.identity.procfs import host_proc, names
from kprobe_exporter.model.values import SHORT_ID

LOOKS = 3
"""How often the cgroup of a process is read. A runtime starts a container's first process in its own cgroup
and moves it within milliseconds."""

MOST_READ = 1000
"""Processes whose cgroups one look reads, which takes about 20 µs each; the others follow at the next
look."""


class RunningContainers:
    """Finds the processes of containers; the thread that calls it owns it.

    A look lists /proc, 0.7 ms for 1,000 processes, and reads the cgroups of those that are new. If the host's
    /proc is missing, only containers in this pid namespace are found. ``nested`` is as for ``container``.
    """

    def __init__(self, proc: Path = Path("/proc"), *, nested: bool = False) -> None:
        self._proc, self._nested = host_proc(proc) or proc, nested
        self._read: dict[int, tuple[int, Container | None]] = {}

    def look(self) -> dict[Container, list[int]]:
        """Return the ids of the processes of each container, the lowest first.

        An id may have been taken by another process since it was read: ask ``has`` before using it.
        """
        there = sorted(int(name) for name in names(self._proc) if name.isdecimal())
        self._read = {pid: self._read.get(pid, (0, None)) for pid in there}
        due = [pid for pid, (looks, _) in self._read.items() if looks < LOOKS]
        for pid in due[:MOST_READ]:
            self._read[pid] = self._read[pid][0] + 1, self.container(pid)
        found: dict[Container, list[int]] = {}
        for pid, (_, inside) in self._read.items():
            if inside is not None:
                found.setdefault(inside, []).append(pid)
        return found

    def has(self, found: Container, pid: int) -> bool:
        """Return whether a process is in this container now."""
        return self.container(pid) == found

    def has_root(self, found: Container, pid: int) -> bool:
        """Return whether a process is in this container, and its root is the container's.

        A runtime's own process is in the cgroup before it goes to that root, and has the machine's till then.
        Raises PermissionError where this process may not look into the other one (CAP_SYS_PTRACE).
        """
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            own, machine = self.root(pid).stat(), self._machine()
            return (own.st_dev, own.st_ino) != (machine.st_dev, machine.st_ino) and self.has(found, pid)
        return False

    def _machine(self) -> os.stat_result:
        """Return the machine's root, or this process' where init cannot be inspected."""
        with suppress(PermissionError):
            return self.root(1).stat()
        return Path("/").stat()

    def root(self, pid: int) -> Path:
        """Return the path below which a process has its files."""
        return self._proc / str(pid) / "root"

    def container(self, pid: int) -> Container | None:
        """Return the container in which a process is now; None for none, and for a process that has ended."""
        return next(self._containers(pid), None)

    def _containers(self, pid: int) -> Iterator[Container]:
        with suppress(OSError):
            for _, _, path in LINE.findall((self._proc / str(pid) / "cgroup").read_bytes()):
                if (found := container(path, nested=self._nested)) is not None:
                    yield found


class Places:
    """Names the pods and containers of living processes; the thread that calls it owns it.

    If the host's /proc is missing, it names none, because events have other ids then.
    """

    def __init__(self, proc: Path = Path("/proc"), pods: Pods | None = None, *, nested: bool = False) -> None:
        known = host_proc(proc)
        self._containers = None if known is None else RunningContainers(known, nested=nested)
        self._pods = pods or Pods()

    def name(self, pid: int) -> str:
        """Return a process' pod, ``shop/web-1``, or container, ``docker 0123456789ab``, "" for neither."""
        inside = None if self._containers is None else self._containers.container(pid)
        if inside is None:
            return ""
        pod = self._pods.find(inside.id, inside.pod)
        return f"{inside.runtime} {inside.id[:SHORT_ID]}" if pod is None else f"{pod.namespace}/{pod.name}"
