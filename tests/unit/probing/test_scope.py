"""probing.scope: the lists of threads that are written to the kernel, and the sentences for a wrong scope."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from kprobe_exporter.errors import StartError, UsageError
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.identity.procfs import INITIAL, KTHREADD
from kprobe_exporter.probing import container_scope
from kprobe_exporter.probing import scope as module
from kprobe_exporter.probing.scope import LEFT, MAX_TIDS, RECORDED, Scope, ScopedThreads, comm_filter, user_id
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.thread_ids import HostIds
from tests.support.container_processes import ContainerProcesses
from tests.support.containers import container_id, write_logs


class Lists:
    """The kernel's two lists, of which a write makes a longer one, and a truncation none."""

    def __init__(self, *, excludes: bool = True) -> None:
        self.lists: dict[str, set[int] | None] = {RECORDED: None, **({LEFT: None} if excludes else {})}
        self.writes: list[tuple[str, str]] = []
        self.on_write: Callable[[], None] = lambda: None

    def exists(self, path: str) -> bool:
        return Path(path).name in self.lists

    def read(self, path: str) -> bytes:
        return "".join(f"{tid}\n" for tid in sorted(self.lists[Path(path).name] or ())).encode()

    def write(self, path: str, text: str) -> None:
        name = Path(path).name
        self.writes.append((name, text))
        if name in self.lists:
            self.lists[name] = (self.lists[name] or set()) | set(map(int, text.split()))
            self.on_write()

    def truncate(self, path: str) -> None:
        self.lists[Path(path).name] = None

    @property
    def recorded(self) -> set[int]:
        """The threads that the kernel records, of those that are named."""
        recorded = self.lists[RECORDED]
        assert recorded is not None, "every thread is recorded"
        return recorded - (self.lists.get(LEFT) or set())


class Machine:
    """A /proc with processes, and the kernel's lists of one instance."""

    def __init__(self, root: Path) -> None:
        self.proc = root
        self.kernel = Lists()
        self.now = 0.0
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").symlink_to(INITIAL)
        self.start(KTHREADD)

    def start(self, pid: int, *tids: int, parent: int = 0, uid: int = 0, state: str = "S") -> None:
        for tid in (pid, *tids):
            (self.proc / f"{pid}/task/{tid}").mkdir(parents=True, exist_ok=True)
            directory = self.proc / str(tid)
            directory.mkdir(exist_ok=True)
            (directory / "stat").write_text(f"{tid} (a) b) {state} {parent} 0 0\n")
            (directory / "status").write_text(f"Name:\ta\nTgid:\t{pid}\nUid:\t{uid}\t1\t2\t3\n")

    def scoped(self, scope: Scope, host_ids: HostIds | None = None) -> ScopedThreads:
        self.instance = Instance(cast("Tracefs", self.kernel), "t", None)
        return ScopedThreads(self.instance, scope, host_ids, self.proc, lambda: self.now)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_process_with_later_threads(machine: Machine) -> None:
    machine.start(7, 8)
    machine.start(20, parent=7)
    threads = machine.scoped(Scope(pid=7))
    threads.look()
    machine.start(7, 9)
    threads.look()
    assert machine.kernel.writes == [(RECORDED, "7 8\n"), (RECORDED, "9\n")]


def test_thread_alone(machine: Machine) -> None:
    machine.start(7, 8)
    machine.scoped(Scope(tid=8)).look()
    assert machine.kernel.writes == [(RECORDED, "8\n")]


@pytest.mark.parametrize(("scope", "what"), [(Scope(pid=7), "process 7"), (Scope(tid=7), "thread 7")])
def test_absent_process_or_thread(machine: Machine, scope: Scope, what: str) -> None:
    with pytest.raises(StartError, match=f"there is no {what}"):
        machine.scoped(scope)
    assert machine.kernel.writes == []


def test_many_threads_in_few_writes(machine: Machine) -> None:
    machine.start(10, *range(11, 2 * MAX_TIDS + 11))
    machine.scoped(Scope(pid=10))
    numbers = [[int(word) for word in text.split()] for _, text in machine.kernel.writes]
    assert [len(part) for part in numbers] == [MAX_TIDS, MAX_TIDS, 1]
    assert [number for part in numbers for number in part] == [*range(10, 2 * MAX_TIDS + 11)]


def test_descendants_inherit_the_scope(machine: Machine) -> None:
    """Children that start while the lists are written are found, and later ones left to the kernel."""
    machine.start(7)
    machine.start(20, 21, parent=7)
    machine.start(30, parent=20)
    machine.start(40, parent=1)
    late = iter([50, 60])
    machine.kernel.on_write = lambda: machine.start(next(late, 60), parent=30)
    threads = machine.scoped(Scope(pid=7, children=True))
    assert machine.kernel.writes[0] == ("event-fork", "1")
    assert machine.kernel.recorded == {7, 20, 21, 30, 50, 60}
    machine.start(70, parent=7)
    threads.look()
    assert 70 not in machine.kernel.recorded


def test_user_follows_changes_of_processes(machine: Machine) -> None:
    """A process that becomes another user's leaves with what it starts, and may come back."""
    for pid, uid in ((7, 1000), (8, 1000), (9, 0)):
        machine.start(pid, uid=uid)
    threads = machine.scoped(Scope(uid=1000))
    assert machine.kernel.recorded == {7, 8}
    machine.start(7, uid=0)
    machine.start(8, uid=0)
    machine.start(9, uid=1000)
    threads.look()
    assert machine.kernel.recorded == {9}
    machine.start(7, uid=1000)
    threads.look()
    assert machine.kernel.recorded == {7, 9}
    assert machine.kernel.lists[LEFT] == {8}


def test_ended_threads_are_left_to_the_kernel(machine: Machine) -> None:
    """It takes a thread from its lists once it is reaped, and a zombie's id is not another thread's."""
    machine.start(7, uid=1000)
    threads = machine.scoped(Scope(uid=1000))
    machine.start(7, uid=0, state="Z")
    threads.look()
    assert machine.kernel.lists[LEFT] is None


def test_empty_scope_records_nothing(machine: Machine) -> None:
    """A kernel without a list records every thread."""
    machine.start(7, uid=0)
    threads = machine.scoped(Scope(uid=1000))
    assert machine.kernel.lists == {RECORDED: {KTHREADD}, LEFT: {KTHREADD}}
    machine.start(7, uid=1000)
    threads.look()
    assert machine.kernel.recorded == {7}
    machine.scoped(Scope(uid=0))
    assert machine.kernel.recorded == {KTHREADD}


def test_kernel_that_cannot_exclude(machine: Machine) -> None:
    """Before 5.7 a thread that leaves stays recorded."""
    machine.kernel = Lists(excludes=False)
    machine.start(7, uid=1000)
    threads = machine.scoped(Scope(uid=1000))
    machine.start(7, uid=0)
    threads.look()
    assert machine.kernel.recorded == {7}


def test_cgroup_with_those_below(machine: Machine, tmp_path: Path) -> None:
    for tid in (7, 8, 9):
        machine.start(tid, uid=tid)
    below = tmp_path / "cgroups/a/b"
    below.mkdir(parents=True)
    (below / "cgroup.threads").write_text("8\n0\n")
    members = below.parent / "cgroup.threads"
    members.write_text("7\n")
    threads = machine.scoped(Scope(cgroup=str(below.parent)))
    assert machine.kernel.recorded == {7, 8}
    members.write_text("9\n")
    threads.look()
    assert machine.kernel.recorded == {8, 9}
    machine.kernel = Lists()
    machine.scoped(Scope(cgroup=str(below.parent), uid=9))
    assert machine.kernel.recorded == {9}


@pytest.mark.parametrize(("kind", "members"), [("cgroup2", "cgroup.threads"), ("cgroup", "tasks")])
def test_cgroup_by_its_path(machine: Machine, tmp_path: Path, kind: str, members: str) -> None:
    machine.start(7)
    place = tmp_path / "c g"
    (place / "system.slice").mkdir(parents=True)
    (place / "system.slice" / members).write_text("7\n")
    (machine.proc / "self/mountinfo").write_text(
        f"30 25 0:25 / {str(place).replace(' ', chr(92) + '040')} rw - {kind} {kind} rw\n"
    )
    machine.scoped(Scope(cgroup="/system.slice"))
    assert machine.kernel.recorded == {7}
    with pytest.raises(StartError, match="there is no cgroup '/nosuch'"):
        machine.scoped(Scope(cgroup="/nosuch"))


def test_containers_and_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = ContainerProcesses(tmp_path / "containers")
    machine = Machine.__new__(Machine)
    machine.proc, machine.kernel, machine.now = there.proc, Lists(), 0.0
    for number, pod in ((1, "web-1"), (2, "web-2"), (3, "db-0")):
        there.start(100 + number, number)
        write_logs(tmp_path, number, pod, "shop")
        machine.start(100 + number)
    monkeypatch.setattr(container_scope, "Pods", lambda: Pods(tmp_path))
    machine.scoped(Scope(pod="web-*"))
    assert machine.kernel.recorded == {101, 102}
    machine.kernel = Lists()
    machine.scoped(Scope(container=f"{container_id(3)[:9]}*"))
    assert machine.kernel.recorded == {103}
    there_are = r"there are shop/web-\d, shop/web-\d, shop/db-0"
    with pytest.raises(StartError, match=f"no container that runs fits 'pod: wep': {there_are}"):
        machine.scoped(Scope(pod="wep"))


def test_looks_that_take_long_are_seldom(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.start(7)
    asked = []

    def slow(proc: Path, pids: object) -> set[int]:
        machine.now += 0.1
        asked.append(machine.now)
        return {7}

    monkeypatch.setattr(module, "threads_of", slow)
    threads = machine.scoped(Scope(uid=0))
    first = len(asked)
    for _ in range(100):
        machine.now += 0.1
        threads.look()
    assert len(asked) - first in (4, 5)  # each takes a twentieth of the time


def test_translated_once(machine: Machine) -> None:
    """Each thread is asked for once, as long as it lives."""
    asked: list[set[int]] = []

    class Ids(HostIds):
        def __init__(self) -> None:
            pass

        def of(self, tids: object) -> dict[int, int]:
            assert isinstance(tids, set)
            asked.append(tids)
            return {tid: tid + 1000 for tid in tids}

    machine.start(7, 8)
    threads = machine.scoped(Scope(pid=7), Ids())
    machine.start(7, 9)
    threads.look()
    assert [one for one in asked if one] == [{7, 8}, {9}]
    assert machine.kernel.recorded == {1007, 1008, 1009}
    assert threads.translated == {7: 1007, 8: 1008, 9: 1009}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nginx", 'COMM == "nginx"'),
        ("php*", 'COMM ~ "php*"'),
        ('a"b', "COMM == 'a\"b'"),
        ("a-name-of-16-byte", 'COMM == "a-name-of-16-by"'),
    ],
)
def test_name_as_a_filter(machine: Machine, name: str, text: str) -> None:
    assert comm_filter(name) == text
    machine.scoped(Scope(comm=name))
    assert machine.instance.guard == text
    assert machine.kernel.writes == []


@pytest.mark.parametrize("name", ["", "a\"'", "a\n"])
def test_name_that_no_filter_can_have(name: str) -> None:
    with pytest.raises(UsageError, match="no filter can have"):
        comm_filter(name)


def test_users() -> None:
    assert user_id("root") == user_id("0") == 0
    with pytest.raises(UsageError, match=r"there is no user 'rooot', did you mean 'root'\?$"):
        user_id("rooot")
