"""A memory cgroup, of version 2 or 1, in which an agent runs as a process of its own."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.patience import eventually
from tests.support.unified_cgroup import is_removed

CGROUPS = Path("/sys/fs/cgroup")
NAME = f"kprobe_exporter_{os.getpid()}"


class MemoryCgroup:
    """The directory of the group."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def execute(self, arguments: list[str]) -> None:
        """Be the command line, in the group: a new program, as memory from before a fork is not charged."""
        (self.directory / "cgroup.procs").write_text(str(os.getpid()))
        os.execv(sys.executable, [sys.executable, "-m", "kprobe_exporter", *arguments])

    def killed(self) -> int:
        """Return how many processes the kernel killed since the limit left no memory for them."""
        (events,) = (
            file
            for name in ("memory.events", "memory.oom_control")
            if (file := self.directory / name).exists()
        )
        return int(dict(line.split() for line in events.read_text().splitlines())["oom_kill"])

    def peak(self) -> int:
        """Return the most bytes that were charged; 0 before Linux 5.19, which brought memory.peak."""
        files = (self.directory / name for name in ("memory.peak", "memory.max_usage_in_bytes"))
        return next((int(file.read_text()) for file in files if file.exists()), 0)


@contextmanager
def memory_cgroup(limit: int) -> Iterator[MemoryCgroup]:
    """Make a group whose processes may have so many bytes together, without swap."""
    hierarchy, name, swap = CGROUPS / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
    if not hierarchy.is_dir():
        hierarchy, name, swap = CGROUPS, "memory.max", "memory.swap.max"
        if not (control := hierarchy / "cgroup.subtree_control").exists():
            pytest.skip("needs a memory cgroup")
        control.write_text("+memory")
    group = hierarchy / NAME
    group.mkdir()
    try:
        (group / name).write_text(str(limit))
        if (group / swap).exists():
            (group / swap).write_text("0" if hierarchy == CGROUPS else str(limit))
        yield MemoryCgroup(group)
    finally:
        eventually(lambda: is_removed(group))
