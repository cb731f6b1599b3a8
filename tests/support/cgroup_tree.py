"""Cgroups and their threads, as /proc shows them."""

import shutil
from pathlib import Path

from kprobe_exporter.identity.cgroups import INITIAL_CGROUPS, TICK, Cgroups
from kprobe_exporter.identity.procfs import INITIAL

SUSPENDED = 7_000_000_000
"""Nanoseconds that the machine was suspended: its time since boot is ahead of the events' clock."""


MS = 1_000_000


class Machine:
    """A /proc and the clock of the events."""

    def __init__(self, root: Path, namespace: str = INITIAL, cgroup_namespace: str = INITIAL_CGROUPS) -> None:
        self.proc = root
        self.now = 10_000 * MS
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").symlink_to(namespace)
        (root / "self/ns/cgroup").symlink_to(cgroup_namespace)
        self.own("0::/agent\n")

    def own(self, text: str) -> None:
        (self.proc / "self/cgroup").write_text(text)

    def cgroups(self) -> Cgroups:
        return Cgroups(self.proc, lambda: self.now, lambda time_ns: time_ns + SUSPENDED)

    def scanned(self, *tids: int) -> Cgroups:
        """Show these threads of one process in /a, the leader first, and return what a scan finds."""
        for tid in tids:
            self.lives(tid, "/a", tgid=tids[0])
        cgroups = self.cgroups()
        cgroups.scan()
        return cgroups

    def lives(
        self, tid: int, cgroup: str, start: int = 0, tgid: int = 0, flags: int = 0, comm: bytes = b"x"
    ) -> None:
        """Show a thread in /proc; ``start`` is in ns of the events' clock."""
        directory = self.proc / str(tid)
        directory.mkdir(exist_ok=True)
        tail = b" 0" * 12
        ticks = (start + SUSPENDED) // TICK
        (directory / "stat").write_bytes(
            b"%d (%s) S 1 1 1 0 -1 %d%s %d 0 0\n" % (tid, comm, flags, tail, ticks)
        )
        (directory / "status").write_bytes(b"Name:\tx\nTgid:\t%d\n" % (tgid or tid))
        (directory / "cgroup").write_text(cgroup if cgroup.endswith("\n") else f"0::{cgroup}\n")
        task = self.proc / str(tgid or tid) / "task" / str(tid)
        if not task.is_symlink():
            task.parent.mkdir(parents=True, exist_ok=True)
            task.symlink_to(directory)

    def gone(self, tid: int) -> None:
        for task in self.proc.glob(f"*/task/{tid}"):
            task.unlink()
        shutil.rmtree(self.proc / str(tid), ignore_errors=True)
