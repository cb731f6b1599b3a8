"""Cgroups of the unified hierarchy (v2), and processes in them."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.support.forked_child import in_a_child
from tests.support.patience import eventually

ROOT = Path("/sys/fs/cgroup")


@contextmanager
def group(name: str, *controllers: str) -> Iterator[Path]:
    """Yield a new cgroup below the root, or below one that is made as well, with these controllers."""
    *parents, _ = Path(name).parents
    made = [ROOT / parent for parent in reversed(parents)]
    (ROOT / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in controllers))
    for path in [*made, ROOT / name]:
        path.mkdir()
    try:
        yield ROOT / name
    finally:
        for path in [ROOT / name, *reversed(made)]:
            eventually(partial(is_removed, path))
        (ROOT / "cgroup.subtree_control").write_text(" ".join(f"-{one}" for one in controllers))


def is_removed(group: Path) -> bool:
    """Remove a cgroup; return whether its processes have ended altogether, so that it could be."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def within(where: Path, work: Callable[[], object], cpus: Iterable[int] = (0, 1)) -> int:
    """Do this in a child in the cgroup, on these CPUs; return the child's id."""

    def enter() -> None:
        os.sched_setaffinity(0, cpus)
        (where / "cgroup.procs").write_text("0")
        work()

    return in_a_child(enter)


def statistics(where: Path) -> dict[str, int]:
    lines = (line.split() for line in (where / "cpu.stat").read_text().splitlines())
    return {name: int(value) for name, value in lines}
