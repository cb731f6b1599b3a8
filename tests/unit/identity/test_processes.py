"""identity.processes: facts are right in the order of events, or unknown; never those of another process."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.identity.cgroups import TICK
from kprobe_exporter.identity.processes import CLONE_PARENT, MAX_ARGV_BYTES, UID_AGE_NS, Processes
from kprobe_exporter.identity.procfs import INITIAL, PF_KTHREAD
from kprobe_exporter.identity.threads import CLONE_THREAD
from kprobe_exporter.model.specs import OF_PROCESS

SUSPENDED = 7_000_000_000
MS = 1_000_000


class Machine:
    """A /proc, and the events' clock, which a suspension has put behind the time since boot."""

    def __init__(self, root: Path) -> None:
        self.proc, self.now = root, 10_000 * MS
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").symlink_to(INITIAL)

    def processes(self, *wanted: str) -> Processes:
        found = Processes(self.proc, lambda: self.now, lambda time_ns: time_ns + SUSPENDED)
        found.wanted = wanted
        return found

    def lives(
        self,
        pid: int,
        comm: bytes = b"x",
        ppid: int = 1,
        uid: int = 0,
        argv: bytes = b"",
        exe: str = "/bin/x",
        start: int = 0,
        tgid: int = 0,
        flags: int = 0,
    ) -> None:
        """Show a thread; ``start`` is in ns of the events' clock."""
        self.gone(pid)
        place = self.proc / str(pid)
        place.mkdir()
        ticks, tail = (start + SUSPENDED) // TICK, b" 0" * 12
        (place / "stat").write_bytes(b"%d (%s) S 1 1 1 0 -1 %d%s %d 0 0\n" % (pid, comm, flags, tail, ticks))
        status = b"Name:\t%s\nTgid:\t%d\nNgid:\t0\nPid:\t%d\nPPid:\t%d\nTracerPid:\t0\nUid:\t%d\t9\t9\t9\n"
        (place / "status").write_bytes(status % (b"y", tgid or pid, pid, ppid, uid))
        (place / "cmdline").write_bytes(argv)
        if exe:
            (place / "exe").symlink_to(exe)

    def gone(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid), ignore_errors=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def facts(processes: Processes, tid: int, time_ns: int) -> dict[str, object]:
    return {name: processes.fact(name, tid, time_ns) for name in sorted(OF_PROCESS)}


def test_process_that_lives(machine: Machine) -> None:
    machine.lives(7, b"sh", ppid=1)
    machine.lives(8, b"ls) S", 7, 1000, b"ls\0-l\0a b\0", "/bin/ls (deleted)", machine.now - 3 * MS * 10)
    assert facts(machine.processes(), 8, machine.now) == {
        "age": 30 * MS,
        "argv": b"ls -l a b",
        "exit_code": None,
        "exit_signal": None,
        "exe": b"/bin/ls",
        "parent_comm": b"sh",
        "ppid": 7,
        "uid": 1000,
    }


def test_process_gone_before_its_exec_was_read(machine: Machine) -> None:
    """Its parent, path and age are known by the kernel's events alone, even after the parent's end."""
    machine.lives(7, b"make", uid=1000)
    processes = machine.processes("argv", "uid")
    processes.scan()
    machine.gone(7)
    machine.now += 5 * MS
    processes.started(7, 8, 0, machine.now, b"make")
    processes.executed(8, 8, machine.now + 1 * MS, b"/usr/bin/cc")
    assert facts(processes, 8, machine.now + 5 * MS) == {
        "age": 5 * MS,
        "argv": None,
        "exit_code": None,
        "exit_signal": None,
        "exe": b"/usr/bin/cc",
        "parent_comm": b"make",
        "ppid": 7,
        "uid": None,
    }


def test_process_gone_after_its_exec_was_read(machine: Machine) -> None:
    processes = machine.processes("argv", "uid")
    machine.lives(8, b"id", 7, 5, b"id\0-u\0", start=machine.now)
    processes.started(7, 8, 0, machine.now, b"make")
    processes.executed(8, 8, machine.now, b"/usr/bin/id")
    machine.gone(8)
    found = facts(processes, 8, machine.now + UID_AGE_NS)
    assert (found["argv"], found["uid"], found["ppid"]) == (b"id -u", 5, None)


def test_reused_id(machine: Machine) -> None:
    """/proc shows a later process of this id: its user and its arguments are not the event's."""
    processes = machine.processes("argv", "uid")
    processes.started(1, 8, 0, machine.now, b"sh")
    machine.lives(8, b"id", 7, 5, b"id\0", start=machine.now + 100 * MS)
    processes.executed(8, 8, machine.now + 1, b"/usr/bin/id")
    found = facts(processes, 8, machine.now + 2)
    assert (found["argv"], found["uid"], found["exe"]) == (None, None, b"/usr/bin/id")


def test_younger_process_rejected(machine: Machine) -> None:
    machine.lives(8, start=machine.now + 100 * MS)
    assert set(facts(machine.processes(), 8, machine.now).values()) == {None}


def test_second_exec_before_the_first_was_read(machine: Machine) -> None:
    """`sh -c 'exec ls'`: /proc has ls by then, whose arguments are not those of sh."""
    processes = machine.processes("argv")
    machine.lives(8, b"ls", 7, argv=b"ls\0", exe="/bin/ls", start=machine.now)
    processes.started(7, 8, 0, machine.now, b"make")
    processes.executed(8, 8, machine.now + 1, b"/bin/sh")
    assert processes.fact("argv", 8, machine.now + 2) is None
    processes.executed(8, 8, machine.now + 3, b"/bin/ls")
    assert processes.fact("argv", 8, machine.now + 4) == b"ls"
    assert processes.fact("exe", 8, machine.now + 4) == b"/bin/ls"


def test_name_of_a_program_by_descriptor(machine: Machine) -> None:
    processes = machine.processes("argv")
    machine.lives(8, b"4", argv=b"init\0", start=machine.now)
    processes.started(7, 8, 0, machine.now, b"runc")
    processes.executed(8, 8, machine.now + 1, b"/dev/fd/4")
    assert processes.fact("argv", 8, machine.now + 2) == b"init"


def test_thread(machine: Machine) -> None:
    """A thread has its process's facts; the name of a child's parent is the process's while that lives."""
    machine.lives(7, b"java", ppid=1)
    processes = machine.processes()
    processes.started(7, 71, CLONE_THREAD, machine.now, b"java")
    processes.started(71, 8, 0, machine.now + 1, b"pool-1")
    assert processes.fact("exe", 71, machine.now + 2) == b"/bin/x"
    assert processes.fact("ppid", 8, machine.now + 2) == 7
    assert processes.fact("parent_comm", 8, machine.now + 2) == b"java"
    machine.gone(7)
    processes.started(71, 9, 0, machine.now + 3, b"pool-1")
    assert processes.fact("parent_comm", 9, machine.now + 4) == b"pool-1"


def test_thread_found_in_proc(machine: Machine) -> None:
    machine.lives(7, b"java", ppid=1, uid=3)
    machine.lives(71, b"pool-1", ppid=1, tgid=7, exe="")
    assert facts(machine.processes(), 71, machine.now) == facts(machine.processes(), 7, machine.now)


def test_exec_by_a_thread(machine: Machine) -> None:
    """The thread gets the id of its leader, which has ended."""
    processes = machine.processes()
    processes.started(1, 7, 0, machine.now, b"init")
    processes.started(7, 71, CLONE_THREAD, machine.now, b"x")
    processes.executed(71, 7, machine.now + 1, b"/bin/y")
    assert processes.fact("exe", 7, machine.now + 2) == b"/bin/y"
    assert processes.fact("exe", 71, machine.now + 2) is None


def test_sibling_by_clone_parent(machine: Machine) -> None:
    processes = machine.processes()
    processes.started(1, 7, 0, machine.now, b"init")
    processes.started(7, 8, 0, machine.now + 1, b"sh")
    processes.started(8, 9, CLONE_PARENT, machine.now + 2, b"cc")
    assert processes.fact("ppid", 9, machine.now + 3) == 7
    assert processes.fact("parent_comm", 9, machine.now + 3) == b"sh"
    processes.lost()
    processes.started(8, 9, CLONE_PARENT, machine.now + 2, b"cc")
    assert processes.fact("parent_comm", 9, machine.now + 3) is None


def test_user_id_read_again(machine: Machine) -> None:
    machine.lives(8, uid=0)
    processes = machine.processes()
    assert processes.fact("uid", 8, machine.now) == 0
    machine.lives(8, uid=33)
    assert processes.fact("uid", 8, machine.now) == 0
    machine.now += UID_AGE_NS
    assert processes.fact("uid", 8, machine.now) == 33


def test_long_command_line_cut(machine: Machine) -> None:
    machine.lives(8, argv=b"x" * (MAX_ARGV_BYTES + 1))
    assert machine.processes().fact("argv", 8, machine.now) == b"x" * MAX_ARGV_BYTES + "…".encode()


def test_kernel_thread_and_idle_thread(machine: Machine) -> None:
    machine.lives(2, b"kthreadd", ppid=0, exe="", flags=PF_KTHREAD)
    processes = machine.processes()
    assert processes.fact("exe", 2, machine.now) == b""
    assert processes.fact("parent_comm", 2, machine.now) == b""
    assert processes.fact("uid", 0, machine.now) == 0
    assert processes.fact("exe", -1, machine.now) is None


def test_number_of_threads_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.identity.processes.MAX_THREADS", 3)
    processes = machine.processes()
    for child in range(10, 15):
        processes.started(1, child, 0, machine.now, b"sh")
    assert [processes.fact("parent_comm", tid, machine.now + 1) for tid in range(10, 15)] == [
        None,
        None,
        b"sh",
        b"sh",
        b"sh",
    ]


def test_other_pid_namespace(machine: Machine) -> None:
    """Threads of another /proc are never those of events; the kernel's events serve all the same."""
    machine.lives(8)
    (machine.proc / "self/ns/pid").unlink()
    (machine.proc / "self/ns/pid").symlink_to("pid:[1]")
    processes = machine.processes("uid")
    assert processes.fact("exe", 8, machine.now) is None
    processes.started(7, 9, 0, machine.now, b"sh")
    processes.executed(9, 9, machine.now, b"/bin/z")
    assert (processes.fact("exe", 9, machine.now), processes.fact("uid", 9, machine.now)) == (b"/bin/z", None)


Step = tuple[str, int, int]


@given(st.lists(st.tuples(st.sampled_from(["fork", "exec", "thread"]), st.integers(2, 6), st.integers(2, 6))))
def test_drawn_trees(steps: list[Step]) -> None:
    """Without any /proc each fact is that of a plain model of forks and execs, or unknown at the roots."""
    processes = Processes(Path("/nowhere"), lambda: 0, lambda time_ns: time_ns)
    model: dict[int, tuple[int, int | None, bytes | None]] = {}  # process, its parent, its path
    ended: set[int] = set()
    for time_ns, (step, actor, other) in enumerate(steps, 1):
        if actor in ended:
            continue
        pid, ppid, exe = model.get(actor, (None, None, None))
        if step == "exec":
            tid = pid or actor
            processes.executed(actor, tid, time_ns, b"/%d" % time_ns)
            ended |= {one for one, known in model.items() if known[0] == tid} - {tid}
            model = {one: known for one, known in model.items() if known[0] != tid}
            model[tid] = (tid, ppid, b"/%d" % time_ns)
        elif other != actor:
            flags = CLONE_THREAD if step == "thread" else 0
            processes.started(actor, other, flags, time_ns, b"n")
            model.pop(other, None)
            ended.discard(other)
            if not flags:
                model[other] = (other, pid, exe)
            elif pid is not None:
                model[other] = (pid, ppid, exe)
        for tid, (_, parent, path) in model.items():
            assert processes.fact("ppid", tid, time_ns) == parent
            assert processes.fact("exe", tid, time_ns) == path


@pytest.mark.parametrize(
    ("code", "exit_code", "exit_signal"),
    [
        (0, 0, 0),
        (3 << 8, 3, 0),
        (137 << 8, 137, 0),
        (9, 137, 9),
        (0x80 | 11, 139, 11),  # with a core dump
        (64, 192, 64),
        (-4, None, None),  # as a kernel thread may end
    ],
)
def test_how_thread_ends(machine: Machine, code: int, exit_code: int | None, exit_signal: int | None) -> None:
    processes = machine.processes()
    processes.started(1, 8, 0, machine.now, b"sh")
    processes.started(8, 9, CLONE_THREAD, machine.now, b"x")
    processes.exiting(9, machine.now + MS, code)
    found = facts(processes, 9, machine.now + 2 * MS)
    assert (found["exit_code"], found["exit_signal"]) == (exit_code, exit_signal)
    assert found["age"] == 2 * MS
    assert processes.fact("exit_code", 8, machine.now + 2 * MS) is None  # the first thread lives


def test_end_of_thread_is_not_of_later_ones(machine: Machine) -> None:
    processes = machine.processes()
    processes.started(1, 8, 0, machine.now, b"sh")
    processes.started(8, 9, CLONE_THREAD, machine.now, b"x")
    processes.exiting(8, machine.now + MS, 0)  # de_thread() ends the first thread
    processes.executed(9, 8, machine.now + 2 * MS, b"/bin/true")
    assert processes.fact("exit_code", 8, machine.now + 3 * MS) is None
    processes.exiting(8, machine.now + 4 * MS, 1 << 8)
    assert processes.fact("exit_code", 8, machine.now + 5 * MS) == 1
    processes.started(1, 8, 0, machine.now + 6 * MS, b"sh")
    assert processes.fact("exit_code", 8, machine.now + 7 * MS) is None


def test_end_of_unknown_thread(machine: Machine) -> None:
    processes = machine.processes()
    processes.exiting(8, machine.now, 0)
    assert processes.fact("exit_code", 8, machine.now) is None
