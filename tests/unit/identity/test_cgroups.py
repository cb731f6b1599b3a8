"""Cgroups of threads: exact where all events are reported, and never the cgroup of another thread."""

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kprobe_exporter.identity import cgroups
from kprobe_exporter.identity.cgroups import (
    CLONE_INTO_CGROUP,
    KEPT,
    LONGEST,
    PF_EXITING,
    TICK,
    Cgroups,
    boot_time,
)
from kprobe_exporter.identity.procfs import INITIAL, names
from kprobe_exporter.identity.threads import CLONE_THREAD
from tests.support.cgroup_tree import MS, Machine

ID = "0123456789abcdef" * 4


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_idle_thread_is_in_the_root(machine: Machine) -> None:
    known = machine.cgroups()
    known.attached(0, 0, b"/x", 5)
    known.started(2, 0, 0, 6)
    assert known.path(0, 7) == b"/"
    assert known.path(-1, 7) is None


def test_a_thread_that_ran_before(machine: Machine) -> None:
    machine.lives(7, "/a/b:c d", comm=b"a) S 1 (b\n")
    assert machine.cgroups().path(7, machine.now) == b"/a/b:c d"


def test_a_kernel_thread(machine: Machine) -> None:
    machine.lives(2, "/")
    known = machine.cgroups()
    known.started(2, 9, 0, machine.now + 1)
    machine.gone(2)
    assert (known.path(2, machine.now), known.path(9, machine.now + 1)) == (b"/", b"/")


@pytest.mark.parametrize(
    ("late", "path"), [(-TICK, b"/a"), (0, b"/a"), (TICK, b"/a"), (2 * TICK, None), (100 * TICK, None)]
)
def test_the_holder_of_the_id_may_not_be_younger_than_the_event(
    machine: Machine, late: int, path: bytes | None
) -> None:
    event = machine.now - 200 * MS
    machine.lives(7, "/a", start=event + late)
    assert machine.cgroups().path(7, event) == path


def test_an_exiting_thread_is_shown_in_another_cgroup_and_not_believed(machine: Machine) -> None:
    machine.lives(7, "/", flags=0x400000 | PF_EXITING)
    assert machine.cgroups().path(7, machine.now) is None


def test_who_is_not_found_is_asked_for_again_when_the_stream_has_come_so_far(machine: Machine) -> None:
    known = machine.cgroups()
    assert known.path(7, machine.now - 100) is None
    machine.lives(7, "/a")
    assert known.path(7, machine.now - 50) is None
    assert known.path(7, machine.now) == b"/a"


@pytest.mark.parametrize("damage", [b"", b"7 (x) S 1 1", b"\xff\xfe"])
def test_files_that_tell_nothing(machine: Machine, damage: bytes) -> None:
    machine.lives(7, "/a")
    (machine.proc / "7/stat").write_bytes(damage)
    assert machine.cgroups().path(7, machine.now) is None


def test_a_process_that_ends_during_the_scan(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan skips a process that ends, or for which no descriptor is left, and finds all others."""
    for tid in (5, 6, 7, 8):
        machine.lives(tid, "/a")
    real, errors = os.scandir, {"6": errno.ENOENT, "7": errno.EMFILE}

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        number = errors.get(Path(path).parent.name)
        if number is not None:
            raise OSError(number, os.strerror(number))
        return real(path)

    known = machine.cgroups()
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        known.scan()
    for tid in (5, 6, 7, 8):
        machine.gone(tid)
    assert [known.path(tid, machine.now) for tid in (5, 6, 7, 8)] == [b"/a", None, None, b"/a"]


def test_what_a_directory_shows_before_it_is_gone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.lives(5, "/a")
    real = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        def entries() -> Iterator[os.DirEntry[str]]:
            with real(path) as found:
                yield from found
            raise OSError(errno.ENOENT, "gone")

        yield entries()

    known = machine.cgroups()
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        known.scan()
    machine.gone(5)
    assert known.path(5, machine.now) == b"/a"


def test_a_proc_that_cannot_be_listed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.lives(5, "/a")
    monkeypatch.setattr(cgroups, "names", lambda directory: names(f"{directory}/nowhere"))
    known = machine.scanned()
    assert known.path(5, machine.now) == b"/a"


def test_children_inherit_and_go_their_own_way(machine: Machine) -> None:
    known = machine.scanned(1)
    known.started(1, 10, 0, machine.now + 1)
    known.started(10, 11, CLONE_THREAD, machine.now + 2)
    known.attached(10, 0, b"/b", machine.now + 3)
    known.started(11, 12, 0, machine.now + 4)
    assert [known.path(tid, machine.now + 4) for tid in (1, 10, 11, 12)] == [b"/a", b"/b", b"/b", b"/b"]
    known.attached(1, 0, b"/c", machine.now + 5)
    assert [known.path(tid, machine.now + 5) for tid in (1, 10, 11, 12)] == [b"/c", b"/b", b"/b", b"/b"]


def test_a_child_cloned_into_another_cgroup_is_never_in_its_parents(machine: Machine) -> None:
    machine.lives(1, "/a")
    machine.lives(11, "/b", start=machine.now)
    known = machine.scanned()
    machine.now += 100 * MS
    for child in (10, 11):
        known.started(1, child, CLONE_INTO_CGROUP | 0x11, machine.now - 90 * MS)
    machine.gone(11)  # its cgroup was read from /proc at its start event
    assert (known.path(10, machine.now), known.path(11, machine.now)) == (None, b"/b")


def test_a_child_does_not_inherit_where_its_parent_went_afterwards(machine: Machine) -> None:
    """The parent is first seen at the fork, and /proc may show a later cgroup of it."""
    machine.lives(1, "/later")
    known = machine.cgroups()
    known.started(1, 10, 0, machine.now - 50)
    assert known.path(1, machine.now - 40) == b"/later"
    assert known.path(10, machine.now - 40) is None
    known.started(1, 11, 0, machine.now + 1)
    assert known.path(11, machine.now + 1) == b"/later"


def test_events_after_the_exit_and_the_next_holder_of_the_id(machine: Machine) -> None:
    known = machine.scanned(1)
    now = machine.now
    known.started(1, 10, 0, now + 1)
    known.attached(10, 0, b"/b", now + 2)
    known.exited(10, now + 3)
    machine.lives(10, "/zombie", flags=PF_EXITING)
    assert known.path(10, now + 4) == b"/b"
    known.started(1, 10, 0, now + 5)
    assert known.path(10, now + 5) == b"/a"


def test_the_dead_are_forgotten_after_a_while(machine: Machine) -> None:
    known = machine.scanned(1)
    for tid in (10, 11):
        known.started(1, tid, 0, machine.now)
    known.exited(10, machine.now)
    known.exited(11, machine.now + KEPT)
    assert known.path(10, machine.now + KEPT) == b"/a"
    known.exited(1, machine.now + KEPT + 1)
    assert known.path(10, machine.now + KEPT + 1) is None
    assert known.path(11, machine.now + KEPT + 1) == b"/a"


def test_a_leader_that_moved_alone(machine: Machine) -> None:
    known = machine.scanned(5, 6, 7)
    for tid, path in ((5, "/b"), (6, "/a"), (7, "/b")):
        machine.lives(tid, path, tgid=5)
    known.attached(5, 0, b"/b", machine.now + 1)
    machine.gone(7)
    assert [known.path(tid, machine.now + 1) for tid in (5, 6, 7)] == [b"/b", b"/a", b"/b"]
    known.started(6, 8, CLONE_THREAD, machine.now + 2)
    assert known.path(8, machine.now + 2) == b"/a"


def test_proc_decides_only_once_who_stayed(machine: Machine) -> None:
    known = machine.scanned(5, 6)
    machine.lives(6, "/b", tgid=5)
    known.attached(5, 0, b"/b", machine.now + 1)
    assert known.path(6, machine.now + 1) == b"/b"
    machine.lives(6, "/a", tgid=5)  # it moved back; that event is not read yet
    assert known.path(6, machine.now + 2) == b"/b"
    known.attached(6, 0, b"/a", machine.now + 3)
    assert known.path(6, machine.now + 3) == b"/a"


def test_a_dead_thread_does_not_move_with_its_process(machine: Machine) -> None:
    known = machine.scanned(5, 6)
    known.exited(6, machine.now + 1)
    known.attached(5, 0, b"/b", machine.now + 2)
    assert [known.path(tid, machine.now + 2) for tid in (5, 6)] == [b"/b", b"/a"]


def test_an_event_from_before_the_scan_may_be_of_an_earlier_holder(machine: Machine) -> None:
    machine.lives(5, "/a", start=machine.now - 50 * MS)
    known = machine.scanned()
    times = [machine.now - 100 * MS, machine.now - 50 * MS, machine.now]
    assert [known.path(5, time) for time in times] == [None, b"/a", b"/a"]


def test_a_thread_that_moves_alone_leaves_the_others(machine: Machine) -> None:
    known = machine.scanned(5, 6)
    known.attached(6, 0, b"/a/t", machine.now + 1)
    assert [known.path(tid, machine.now + 1) for tid in (5, 6)] == [b"/a", b"/a/t"]


def test_a_thread_that_executes_a_program_becomes_its_processs_leader(machine: Machine) -> None:
    known = machine.scanned(5, 6)
    known.attached(6, 0, b"/a/t", machine.now + 1)
    known.exited(5, machine.now + 2)
    known.executed(6, 5)
    assert known.path(5, machine.now + 3) == b"/a/t"
    known.attached(5, 0, b"/b", machine.now + 4)
    assert known.path(5, machine.now + 4) == b"/b"
    machine.gone(6)
    assert known.path(6, machine.now + 4) is None
    known.executed(5, 5)
    assert known.path(5, machine.now + 5) == b"/b"


def test_after_a_loss_all_are_strangers(machine: Machine) -> None:
    known = machine.scanned(1)
    known.started(1, 10, 0, machine.now + 1)
    known.started(1, 11, 0, machine.now + 2)
    machine.lives(11, "/b", start=machine.now + 2)
    machine.now += 100 * MS
    known.lost()
    assert [known.path(tid, machine.now) for tid in (1, 10, 11)] == [b"/a", None, b"/b"]


def test_what_proc_told_after_a_loss_stays(machine: Machine) -> None:
    machine.lives(1, "/a")
    known = machine.cgroups()
    assert known.path(1, machine.now - 100) == b"/a"
    machine.gone(1)
    known.lost(machine.now - 50)
    assert known.path(1, machine.now - 50) == b"/a"
    known.lost(machine.now + 1)
    assert known.path(1, machine.now + 1) is None


def test_a_move_that_proc_told_already_is_exact_once_the_stream_tells_it(machine: Machine) -> None:
    machine.lives(1, "/b")
    known = machine.cgroups()
    now = machine.now
    assert known.path(1, now - 100) == b"/b"
    known.attached(1, 0, b"/a", now - 90)
    known.started(1, 10, 0, now - 80)
    known.attached(1, 0, b"/b", now - 70)
    known.started(1, 11, 0, now - 60)
    assert [known.path(tid, now - 60) for tid in (1, 10, 11)] == [b"/b", b"/a", b"/b"]
    known.lost(now - 50)
    machine.gone(1)
    assert known.path(1, now - 50) is None


def test_what_proc_told_of_several_hierarchies_holds_older_moves(machine: Machine) -> None:
    machine.lives(1, "4:memory:/\n0::/b\n")
    known = machine.cgroups()
    known.path(1, machine.now - 100)
    known.attached(1, 0, b"/a", machine.now - 90)
    known.exited(1, machine.now - 80)
    assert known.path(1, machine.now) == b"/b"
    known.attached(1, 0, b"/c", machine.now + 1)
    assert known.path(1, machine.now + 1) == b"/c"


def test_what_proc_told_of_a_thread_holds_older_moves_of_its_leader(machine: Machine) -> None:
    machine.lives(5, "/b")
    machine.lives(6, "/a", tgid=5)
    known = machine.scanned()
    machine.gone(6)
    known.attached(5, 0, b"/b", machine.now - 90)  # the leader moved alone
    assert [known.path(tid, machine.now) for tid in (5, 6)] == [b"/b", b"/a"]


def test_older_events_may_be_of_an_earlier_holder(machine: Machine) -> None:
    machine.lives(1, "/b", start=machine.now - 50 * MS)
    known = machine.scanned()
    known.attached(1, 0, b"/a", machine.now - 90 * MS)
    known.exited(1, machine.now - 80 * MS)
    assert known.path(1, machine.now) == b"/b"
    known.attached(1, 0, b"/c", machine.now + 1)
    assert known.path(1, machine.now + 1) == b"/c"


def test_a_child_whose_cgroup_is_not_known_is_known_when_it_moves(machine: Machine) -> None:
    known = machine.scanned(1)
    known.started(1, 10, CLONE_INTO_CGROUP, machine.now + 1)
    known.started(10, 11, CLONE_THREAD, machine.now + 2)
    known.attached(10, 0, b"/b", machine.now + 3)
    assert [known.path(tid, machine.now + 3) for tid in (10, 11)] == [b"/b", None]  # 11 may not have moved
    known.started(10, 12, CLONE_THREAD, machine.now + 4)
    known.attached(10, 0, b"/c", machine.now + 5)
    assert [known.path(tid, machine.now + 5) for tid in (10, 12)] == [b"/c", b"/c"]


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ("0::/a\n", b"/a"),
        (f"9:memory:/docker/{ID}\n1:name=systemd:/system.slice\n0::/s\n", f"/docker/{ID}".encode()),
        (f"9:memory:/docker/{ID}\n0::/system.slice/docker-{ID}.scope\n", b"/system.slice/docker-%b.scope"),
        ("12:pids:/p\n9:memory:/m\n2:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/\n", b"/s"),
        ("12:pids:/p\n9:memory:/m\n2:cpu,cpuacct:/c\n1:name=systemd:/\n", b"/m"),
        ("12:pids:/p\n9:memory:/\n2:cpu,cpuacct:/c\n", b"/c"),
        ("12:pids:/p\n9:blkio:/b\n3:freezer:/f\n", b"/p"),
        ("9:blkio:/b\n3:freezer:/f\n", b"/f"),
        ("9:memory:/\n0::/\n", b"/"),
        ("nonsense\n", None),
    ],
)
def test_which_hierarchy_tells(machine: Machine, lines: str, path: bytes | None) -> None:
    machine.lives(7, lines)
    expected = path.replace(b"%b", ID.encode()) if path else path
    assert machine.cgroups().path(7, machine.now) == expected


def test_a_move_in_one_hierarchy_leaves_the_others(machine: Machine) -> None:
    machine.own("9:memory:/\n0::/\n")
    machine.lives(1, "9:memory:/m\n0::/s\n")
    known = machine.scanned()
    now = machine.now
    known.attached(1, 9, f"/docker/{ID}".encode(), now + 1)
    assert known.path(1, now + 1) == f"/docker/{ID}".encode()
    known.attached(1, 0, b"/t", now + 2)
    assert known.path(1, now + 2) == f"/docker/{ID}".encode()
    known.attached(1, 9, b"/", now + 3)
    assert known.path(1, now + 3) == b"/t"
    known.attached(1, 33, b"/new", now + 4)
    assert known.path(1, now + 4) == b"/t"


@pytest.mark.parametrize("path", [b"/" + b"x" * (LONGEST - 1), b""])
def test_a_path_that_may_have_been_cut_off_is_asked_for(machine: Machine, path: bytes) -> None:
    known = machine.scanned(1)
    known.attached(1, 0, path, machine.now + 1)
    machine.lives(1, "/whole")
    assert known.path(1, machine.now + 1) == b"/whole"
    known.attached(1, 0, path, machine.now + 2)
    machine.gone(1)
    assert known.path(1, machine.now + 2) is None


def test_in_another_pid_namespace_only_the_stream_serves(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "pid:[4026532777]")
    machine.lives(7, "/somebody/else")
    known = machine.scanned()
    assert known.path(7, machine.now) is None
    known.attached(7, 0, b"/a", machine.now + 1)
    known.started(7, 8, 0, machine.now + 2)
    known.started(9, 10, 0, machine.now + 3)
    assert [known.path(tid, machine.now + 3) for tid in (7, 8, 10)] == [b"/a", b"/a", None]


def test_one_of_several_hierarchies_tells_only_if_it_names_a_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "pid:[4026532777]")
    machine.own("9:memory:/\n0::/\n")
    known = machine.cgroups()
    known.attached(7, 0, b"/a", 1)
    assert known.path(7, 1) is None
    known.attached(7, 9, b"/b", 2)
    assert known.path(7, 2) == b"/a"
    known.attached(8, 9, f"/docker/{ID}".encode(), 3)
    assert known.path(8, 3) == f"/docker/{ID}".encode()


def test_in_a_cgroup_namespace_what_is_inside_tells_too_little(tmp_path: Path) -> None:
    machine = Machine(tmp_path, INITIAL, "cgroup:[4026532777]")
    machine.own("0::/\n")
    for tid, path in ((7, "/"), (8, "/init.scope"), (9, f"/../cri-containerd-{ID}.scope"), (10, "/..odd")):
        machine.lives(tid, path)
    known = machine.cgroups()
    assert [known.path(tid, machine.now) for tid in (7, 8, 10)] == [None, None, None]
    assert known.path(9, machine.now) == f"/../cri-containerd-{ID}.scope".encode()


def test_no_proc_at_all(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    cgroups.scan()
    assert cgroups.path(7, 1) is None
    cgroups.attached(7, 0, b"/a", 2)
    assert cgroups.path(7, 2) == b"/a"


def test_the_dead_make_room_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MOST_THREADS", 4)
    known = machine.scanned(1)
    for tid in (10, 11, 12):
        known.started(1, tid, 0, machine.now)
    known.exited(11, machine.now)
    known.started(1, 13, 0, machine.now)
    assert [known.path(tid, machine.now) for tid in (1, 10, 12, 13)] == [b"/a"] * 4
    for tid in range(20, 400):
        known.started(1, tid, CLONE_THREAD * (tid % 2), machine.now)
        known.attached(tid, 0, b"/b%d" % tid, machine.now)
        known.path(1000 + tid, machine.now)
    assert len(known._threads) <= 4
    assert sum(map(len, known._processes.values())) <= 4


def test_the_dead_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MOST_EXITED", 5)
    monkeypatch.setattr(cgroups, "MOST_TOLD", 5)
    known = machine.scanned(1)
    for tid in range(10, 40):
        known.started(1, tid, 0, machine.now)
        known.attached(tid, 0, b"/b%d" % tid, machine.now)
        known.exited(tid, machine.now)
    assert sorted(known._threads) == [1, 35, 36, 37, 38, 39]
    assert known._telling.cache_info().currsize <= 5


def test_the_real_proc_knows_this_process() -> None:
    own = Path("/proc/self/cgroup").read_bytes()
    known = Cgroups()
    known.scan()
    path = known.path(os.getpid(), time.monotonic_ns())
    assert path is None or path in own
    assert boot_time(5) >= 5


# A model of the kernel that knows the true cgroup of each thread at each moment.

TIDS = range(1, 7)
STEP = 50 * MS
START = 1_000_000 * MS


@dataclass
class Task:
    """A thread; another thread may hold its id later."""

    number: int
    tid: int
    tgid: int
    start: int
    paths: dict[int, str]
    alive: bool = True


@dataclass
class Moment:
    """The machine after one event: the last holder of each id, and the threads that /proc shows."""

    event: tuple[object, ...]
    holders: dict[int, Task]
    shown: dict[int, Task]


@dataclass
class World:
    """The kernel: each act is an event, and ``moments`` holds the state of the machine after each."""

    hierarchies: tuple[int, ...]
    tasks: list[Task] = field(default_factory=list)
    holders: dict[int, Task] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    made: int = 0

    def now(self) -> int:
        return START + len(self.moments) * STEP

    def task(self, tid: int, tgid: int, paths: dict[int, str]) -> Task:
        task = Task(len(self.tasks), tid, tgid, self.now(), dict(paths))
        self.tasks.append(task)
        self.holders[tid] = task
        return task

    def living(self, tgid: int | None = None) -> list[Task]:
        return [task for task in self.tasks if task.alive and tgid in (None, task.tgid)]

    def shown(self) -> dict[int, Task]:
        """Return the threads in /proc: an exited leader stays for as long as its process has threads."""
        living = self.living()
        groups = {task.tgid for task in living}
        zombies = [task for tid, task in self.holders.items() if not task.alive and tid in groups]
        return {task.tid: task for task in (*zombies, *living)}

    def happens(self, *event: object) -> None:
        holders = {tid: replace(task, paths=dict(task.paths)) for tid, task in self.holders.items()}
        shown = {tid: replace(task, paths=dict(task.paths)) for tid, task in self.shown().items()}
        self.moments.append(Moment(event, holders, shown))

    def fork(self, parent: Task, tid: int, thread: bool, into: bool) -> None:
        if tid in self.shown():
            return
        paths = dict(parent.paths)
        into = into and not thread
        if into:
            paths[0] = self.new_path()
        flags = CLONE_THREAD * thread | CLONE_INTO_CGROUP * into
        self.task(tid, parent.tgid if thread else tid, paths)
        self.happens("started", parent.tid, tid, flags)

    def move(self, task: Task, hierarchy: int, alone: bool) -> None:
        path = self.new_path()
        others = [other for other in self.living(task.tgid) if other is not task]
        if alone and task.tid == task.tgid and others:
            return  # the same event as a move of all; another test covers it
        moved = [task] if alone else [task, *others]
        for one in moved:
            one.paths[hierarchy] = path
        self.happens("attached", task.tid if alone else task.tgid, hierarchy, path.encode())

    def exit(self, task: Task) -> None:
        task.alive = False
        self.happens("exited", task.tid)

    def execute(self, task: Task) -> None:
        for other in self.living(task.tgid):
            if other is not task:
                self.exit(other)
        if task.tid != task.tgid:
            old, leader = task.tid, self.holders[task.tgid]
            del self.holders[old]
            task.tid, task.start = task.tgid, leader.start
            self.holders[task.tid] = task
            self.happens("executed", old, task.tid)

    def new_path(self) -> str:
        """Return a path that is not used yet, so that no thread returns to an earlier cgroup."""
        self.made += 1
        return f"/docker/{self.made:064x}" if self.made % 3 == 0 else f"/m{self.made}"

    def telling(self, task: Task) -> bytes:
        paths = [task.paths[hierarchy] for hierarchy in self.hierarchies]
        for wanted in ("/docker/", "/m"):
            for path in paths:
                if path.startswith(wanted):
                    return path.encode()
        return b"/"


def acts(world: World, script: list[tuple[int, int, int, bool]]) -> None:
    for kind, who, what, flag in script:
        living = world.living()
        if not living:
            return
        task = living[who % len(living)]
        match kind:
            case 0 | 1:
                world.fork(task, TIDS[what % len(TIDS)], thread=flag, into=False)
            case 2:
                world.fork(task, TIDS[what % len(TIDS)], thread=False, into=flag)
            case 3 | 4:
                world.move(task, world.hierarchies[what % len(world.hierarchies)], alone=flag)
            case 5:
                world.exit(task)
            case 6:
                world.execute(task)


def show(machine: Machine, world: World, before: dict[int, Task], after: dict[int, Task]) -> None:
    names = {0: "", 4: "memory"}
    for tid in TIDS:
        task = after.get(tid)
        if task == before.get(tid):
            continue
        machine.gone(tid)
        if task is not None:
            lines = "".join(
                f"{number}:{names[number]}:{task.paths[number]}\n" for number in world.hierarchies
            )
            flags = 0 if task.alive else PF_EXITING
            machine.lives(tid, lines, task.start, flags=flags)
            (machine.proc / str(tid) / "status").write_text(f"Tgid:\t{task.tgid}\n")


scripts = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 6), st.booleans()), max_size=30
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([(0,), (0, 4)]),
    scripts,
    scripts,
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
    st.sets(st.tuples(st.integers(0, 40), st.integers(1, 4)), max_size=2),
    st.lists(st.integers(0, 63), min_size=1, max_size=8),
    st.booleans(),
)
def test_an_answer_is_right_or_unknown(
    hierarchies: tuple[int, ...],
    earlier: list[tuple[int, int, int, bool]],
    later: list[tuple[int, int, int, bool]],
    lags: list[int],
    losses: set[tuple[int, int]],
    asked: list[int],
    scanned: bool,
) -> None:
    """An answer is right or unknown for any events, read with any delay, while /proc shows later states.

    If every event is reported and all threads are known from the beginning, each answer is exact, also
    for dead threads and for later holders of their ids. Otherwise an answer is exact, unknown or, if
    /proc had to be read, the later place of the same thread.
    """
    world = World(hierarchies)
    world.task(1, 1, dict.fromkeys(hierarchies, "/"))
    acts(world, earlier)
    world.happens("begin")
    begin = len(world.moments)
    acts(world, later)
    missing = {begin + at + more for at, many in losses for more in range(many)}
    exact = scanned and not any(
        event[0] == "started" and isinstance(event[3], int) and event[3] & CLONE_INTO_CGROUP
        for event in (moment.event for moment in world.moments[begin:])
    )
    with tempfile.TemporaryDirectory() as root:
        machine = Machine(Path(root))
        machine.own("4:memory:/\n0::/\n" if 4 in hierarchies else "0::/\n")
        view = begin - 1
        show(machine, world, {}, world.moments[view].shown)
        machine.now = START + view * STEP + STEP // 2
        known = machine.cgroups()
        if scanned:
            known.scan()
        gap = False
        for at in range(begin, len(world.moments)):
            seen = max(view, min(at + lags[at % len(lags)], len(world.moments) - 1))
            show(machine, world, world.moments[view].shown, world.moments[seen].shown)
            view = seen
            machine.now = START + view * STEP + STEP // 2
            time = START + at * STEP
            if at in missing:
                gap, exact = True, False
                continue
            if gap:
                known.lost(time if at % 2 else None)
                gap = False
            tell(known, world.moments[at].event, time)
            for tid in TIDS:
                if asked[at % len(asked)] >> tid - 1 & 1:
                    answer = known.path(tid, time + STEP // 4)
                    check(world, at, view, tid, answer, exact)


def tell(known: Cgroups, event: tuple[object, ...], time: int) -> None:
    match event:
        case ("started", int(parent), int(child), int(flags)):
            known.started(parent, child, flags, time)
        case ("attached", int(tid), int(hierarchy), bytes(path)):
            known.attached(tid, hierarchy, path, time)
        case ("exited", int(tid)):
            known.exited(tid, time)
        case ("executed", int(old), int(tid)):
            known.executed(old, tid)
        case _:
            raise AssertionError(event)


def check(world: World, at: int, view: int, tid: int, answer: bytes | None, exact: bool) -> None:
    task = world.moments[at].holders.get(tid)
    if task is None:
        assert answer is None
        return
    truth = world.telling(task)
    if exact and alive_since(world, at, task):
        assert answer == truth
        return
    onward = [moment.holders.get(tid) for moment in world.moments[at : view + 1]]
    # A thread that takes the leader's id also takes its start time, so both look like one thread.
    places = {world.telling(then) for then in onward if then is not None and then.start == task.start}
    assert answer in {None, truth} | places


def alive_since(world: World, at: int, task: Task) -> bool:
    """Return whether the thread was alive at or after the agent's begin: others are unknown to the agent."""
    begin = next(i for i, moment in enumerate(world.moments) if moment.event == ("begin",))
    return any(
        then.number == task.number and then.alive
        for moment in world.moments[begin : at + 1]
        for then in moment.holders.values()
    )
