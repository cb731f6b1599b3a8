"""`trace` with a scope shows the events of its threads and of no others, and leaves the kernel as it was.

The loads record their own processes. A sibling does the same outside the scope.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.probing.scope import LEFT, RECORDED
from tests.support.compiling import compiled
from tests.support.containers import PATHS, container_id, group
from tests.support.mounts import mounted
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace, TraceProcess

pytestmark = pytest.mark.needs("events/syscalls", "initial_pid_namespace")

EXEC = "sched:sched_process_exec"
NOBODY = 65534
MOUNTS = {"v2": ["-t", "cgroup2"], "v1": ["-t", "cgroup", "-o", "none,name=systemd"]}

PUPPET = """
import os, subprocess, sys, threading
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""

FORKS = """
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    int go[2], made = 0;
    char c;
    struct pollfd stop = {0, POLLIN};
    pipe(go);
    while (!poll(&stop, 1, made++ < 100 ? 1 : 100)) {  /* until it is closed */
        int child = fork();
        if (child) { printf("%d\\n", child); fflush(stdout); continue; }
        close(go[1]);
        int grandchild = fork();
        if (grandchild) dprintf(1, "%d\\n", grandchild);
        read(go[0], &c, 1);
        execl("/bin/true", "true", (char *)0);
    }
    close(go[1]);
    while (wait(0) > 0);
    return 0;
}
"""
"""Forks a child each millisecond, which forks another one, until stdin says to stop. Then all of them execute
a program, after the parents of some have ended. Prints the ids of all. After 100 it forks each 0.1 s: listing
thousands takes a slow machine longer than making them, and more of them."""


class Puppet:
    """A process that executes lines of Python."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", PUPPET], stdin=pipe, stdout=pipe, text=True)
        self.pid = self.process.pid

    def run(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def execute(self, *words: str) -> None:
        """Start a program and wait for its end."""
        self.run(f"subprocess.run({list(words)}, stdout=subprocess.DEVNULL)")


@pytest.fixture
def puppets() -> Iterator[tuple[Puppet, Puppet]]:
    """Two processes, the second one for what is outside the scope."""
    both = Puppet(), Puppet()
    yield both
    for one in both:
        with one.process as process:
            process.kill()


@pytest.fixture(params=MOUNTS)
def hierarchy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A hierarchy of cgroups; the test's cgroups are removed at teardown."""
    where = tmp_path / "cgroups"
    where.mkdir()
    with mounted(where, *MOUNTS[request.param]):
        before = set(where.rglob("*/"))
        yield where
        for path in sorted(set(where.rglob("*/")) - before, reverse=True):
            if path.is_dir():
                eventually(partial(is_empty, path))
                path.rmdir()


def is_empty(cgroup: Path) -> bool:
    return not (cgroup / "cgroup.procs").read_text()


def executed(one: TraceProcess) -> list[tuple[int, str]]:
    """End a trace of EXEC, and return the processes and programs, in the order of time."""
    assert one.end() == 0, one.errors
    found = [json.loads(line) for line in one.output.splitlines() if line.startswith(b"{")]
    return [(each["tid"], each["args"]["filename"]) for each in found]


def programs(one: TraceProcess) -> list[str]:
    return [name for _, name in executed(one)]


def listed(one: TraceProcess, name: str, pid: int) -> bool:
    return str(pid) in (one.instance / name).read_text().split()


def test_process_with_its_descendants(
    trace: StartTrace, puppets: tuple[Puppet, Puppet], tmp_path: Path
) -> None:
    """Those that were there at the start, too, and not those of a sibling."""
    inside, outside = puppets
    os.mkfifo(tmp_path / "fifo")
    inside.run(f"there = subprocess.Popen('/bin/sh', stdin=os.open('{tmp_path}/fifo', os.O_RDWR))")
    one = trace("--json", "-p", str(inside.pid), "--children", EXEC)
    one.wait_until_enabled()
    outside.execute("/bin/cat", "/dev/null")
    inside.execute("/bin/sh", "-c", "/bin/sh -c '/bin/ls /dev/null; :'; :")
    (tmp_path / "fifo").write_text("/bin/true; exit\n")
    inside.run("there.wait()")
    outside.execute("/bin/cat", "/dev/null")
    assert programs(one) == ["/bin/sh", "/bin/sh", "/bin/ls", "/bin/true"]


def test_process_without_its_descendants(trace: StartTrace, puppets: tuple[Puppet, Puppet]) -> None:
    inside, _ = puppets
    one = trace("--json", "-p", str(inside.pid), EXEC)
    one.wait_until_enabled()
    inside.execute("/bin/ls", "/dev/null")
    inside.run("print('done', flush=True); os.execv('/bin/cat', ['cat'])")
    inside.run("done")  # it writes what it reads
    assert executed(one) == [(inside.pid, "/bin/cat")]


def test_command(trace: StartTrace, puppets: tuple[Puppet, Puppet]) -> None:
    """It is traced from its first program on, its output is there, and the trace ends with it."""
    words = "/bin/sh -c '/bin/true; /bin/ls /dev/null; /bin/sleep 0.2; exit 5'"
    one = trace("--json", "-c", words, EXEC)
    one.wait_until_enabled()
    puppets[1].execute("/bin/cat", "/dev/null")
    assert one.wait() == 0
    assert programs(one) == ["/bin/sh", "/bin/true", "/bin/ls", "/bin/sleep"]
    assert b"/dev/null\n" in one.output
    assert "note: /bin/sh -c " in one.errors
    assert ": ended with status 5." in one.errors


@pytest.mark.parametrize("terminal", [False, True], ids=["file", "terminal"])
def test_command_in_text(trace: StartTrace, terminal: bool) -> None:
    """All its events are written, although it ends before a turn of the trace."""
    one = trace("-c", "/bin/sh -c '/bin/true; /bin/true; :'", EXEC, terminal=terminal)
    assert one.wait() == 0
    assert one.output.count(b"filename=/bin/") == 3


def test_command_counted(trace: StartTrace) -> None:
    """Its events alone are counted, not the kernel's hits, by a trace and by a tool."""
    code = "import os; [os.getpriority(0, 0) for _ in range(1000)]"
    command = f'{sys.executable} -c "{code}"'
    with subprocess.Popen([sys.executable, "-c", f"while True: {code}"]) as others:
        one = trace("--count", "-c", command, "syscalls:sys_enter_getpriority")
        tool = trace("syscount", "--json", "-c", command, command="tool")
        assert (one.wait(), tool.wait()) == (0, 0)
        others.kill()
    rows = [line.split() for line in one.output.decode().splitlines()]
    assert [row[2] for row in rows if row[:1] == ["syscalls:sys_enter_getpriority"]][1:] == ["1,000"]
    counts = {row["syscall"]: row["count"] for row in json.loads(tool.output)["rows"]}
    assert counts["getpriority"] == 1000


@pytest.mark.parametrize("scope", ["children", "cgroup"])
def test_forks_while_the_trace_starts(trace: StartTrace, tmp_path: Path, scope: str) -> None:
    """No process slips through between the listing and the kernel's own following."""
    program, pipe = compiled(tmp_path / "forks", FORKS), subprocess.PIPE
    hierarchy = tmp_path / "cgroups"
    hierarchy.mkdir()
    with mounted(hierarchy, "-t", "cgroup2"):
        made = hierarchy / f"scopes_{os.getpid()}"
        made.mkdir()
        try:
            enter = ["/bin/sh", "-c", f"echo $$ > '{made}/cgroup.procs'; exec '{program}'"]
            with subprocess.Popen(enter, stdin=pipe, stdout=pipe, text=True) as load:
                assert load.stdout is not None
                pids = {int(load.stdout.readline())}
                words = (
                    ["-p", str(load.pid), "--children"] if scope == "children" else ["--cgroup", str(made)]
                )
                one = trace("--json", *words, EXEC)
                pids |= {int(load.stdout.readline()) for _ in range(100)}
                one.wait_until_enabled()
                assert load.stdin is not None
                load.stdin.close()
                pids |= set(map(int, load.stdout.read().split()))
            assert len(pids) >= 200
            seen = executed(one)
        finally:
            eventually(partial(is_empty, made))
            made.rmdir()
    assert sorted(tid for tid, _ in seen) == sorted(pids)


def test_user(trace: StartTrace, puppets: tuple[Puppet, Puppet]) -> None:
    """Processes that become this user's are found, and those that cease to be are left out."""
    inside, outside = puppets
    one = trace("--json", "--uid", "nobody", EXEC)
    one.wait_until_enabled()
    inside.execute("/bin/cat", "/dev/null")
    inside.run(f"os.setresuid({NOBODY}, 0, 0)")
    eventually(lambda: listed(one, RECORDED, inside.pid))
    inside.execute("/bin/true")
    outside.execute("/bin/cat", "/dev/null")
    inside.run("os.setresuid(0, 0, 0)")
    eventually(lambda: listed(one, LEFT, inside.pid))
    inside.execute("/bin/cat", "/dev/null")
    assert "/bin/cat" not in (seen := programs(one))
    assert "/bin/true" in seen


@pytest.mark.parametrize("by", ["directory", "path"])
def test_cgroup(trace: StartTrace, puppets: tuple[Puppet, Puppet], hierarchy: Path, by: str) -> None:
    """A process that moves in is traced with its children, and no longer once it has moved out."""
    inside, outside = puppets
    name = f"scopes_{os.getpid()}"
    below = hierarchy / name / "below"
    below.mkdir(parents=True)
    one = trace("--json", "--cgroup", str(below.parent) if by == "directory" else f"/{name}", EXEC)
    one.wait_until_enabled()
    inside.execute("/bin/cat", "/dev/null")
    for place in (below.parent, below):
        (place / "cgroup.procs").write_text(str(inside.pid))
        eventually(lambda: listed(one, RECORDED, inside.pid) and not listed(one, LEFT, inside.pid))
        inside.execute("/bin/sh", "-c", "/bin/ls /dev/null; :")
        outside.execute("/bin/cat", "/dev/null")
        (hierarchy / "cgroup.procs").write_text(str(inside.pid))
        eventually(lambda: listed(one, LEFT, inside.pid))
        inside.execute("/bin/cat", "/dev/null")
    assert programs(one) == ["/bin/sh", "/bin/ls"] * 2


def test_container(trace: StartTrace, puppets: tuple[Puppet, Puppet], hierarchy: Path) -> None:
    inside, outside = puppets
    (group(hierarchy, PATHS["docker"], 7) / "cgroup.procs").write_text(str(inside.pid))
    one = trace("--json", "--container", container_id(7)[:12], EXEC)
    absent = trace("--container", "nosuch", EXEC)
    one.wait_until_enabled()
    inside.execute("/bin/true")
    outside.execute("/bin/cat", "/dev/null")
    assert programs(one) == ["/bin/true"]
    (hierarchy / "cgroup.procs").write_text(str(inside.pid))
    assert absent.wait() == 1
    assert (
        f"no container that runs fits 'container: nosuch': there are {container_id(7)[:12]}" in absent.errors
    )


def test_place_as_a_column(trace: StartTrace, puppets: tuple[Puppet, Puppet], hierarchy: Path) -> None:
    """Rows and tables have the container and the cgroup in which a thread was at the event."""
    inside, outside = puppets
    places = [group(hierarchy, PATHS["docker"], number) for number in (7, 8)]
    added = ("--json", "-v", "--add", "container", "--add", "cgroup")
    rows, table = (trace(tool, *added, command="tool") for tool in ("killsnoop", "syscount"))
    for one in (rows, table):
        one.wait_until_tracing()
    (places[0] / "cgroup.procs").write_text(str(inside.pid))
    inside.run("[os.kill(os.getpid(), 0) for _ in range(7)]")
    (places[1] / "cgroup.procs").write_text(str(inside.pid))
    inside.run("os.kill(os.getpid(), 0)")
    outside.run("[os.kill(os.getpid(), 0) for _ in range(3)]")
    for one in (rows, table):
        assert one.end() == 0, one.errors
    (hierarchy / "cgroup.procs").write_text(str(inside.pid))
    first, second = (container_id(number) for number in (7, 8))
    shown = [json.loads(line) for line in rows.output.splitlines()]
    own = [(row["container"], row["cgroup"]) for row in shown if row["pid"] == inside.pid]
    paths = [f"/{place.relative_to(hierarchy)}" for place in places]
    assert own == [(first, paths[0])] * 7 + [(second, paths[1])]
    assert {row["container"] for row in shown if row["pid"] == outside.pid} == {""}
    counted = json.loads(table.output)["rows"]
    found = {row["container"]: row["count"] for row in counted if row["syscall"] == "kill"}
    assert (found[first], found[second]) == (7, 1)


def test_name(trace: StartTrace, puppets: tuple[Puppet, Puppet]) -> None:
    """The kernel compares the thread's name at the event; with a process both have to fit."""
    call = "[os.getpriority(0, 0) for _ in range(7)]"
    ways: Sequence[list[str]] = [[], ["-p", str(puppets[0].pid)]]
    running = [trace("--json", "--comm", "scoped*", *way, "syscalls:sys_enter_getpriority") for way in ways]
    for one in running:
        one.wait_until_enabled(tracepoints=["syscalls/sys_enter_getpriority"])
    for puppet in puppets:
        puppet.run(call)
        puppet.run("open('/proc/self/comm', 'w').write('scoped name')")
        puppet.run(call)
    for one, expected in zip(running, (puppets, puppets[:1]), strict=True):
        assert one.end() == 0
        found = [json.loads(line) for line in one.output.splitlines()]
        assert [(each["tid"], each["comm"]) for each in found] == [
            (puppet.pid, "scoped name") for puppet in expected for _ in range(7)
        ]


@pytest.mark.skipif("KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on")
def test_name_of_a_pair(trace: StartTrace, puppets: tuple[Puppet, Puppet]) -> None:
    """The thread that begins it has the name: another one ends a wait, when it leaves the CPU."""
    tool = trace("offcputime", "--comm", "scoped*", "-v", command="tool")
    tool.wait_until_tracing()
    passed: list[float] = []
    for puppet, name, seconds in zip(puppets, ("scoped name", "another"), (0.2, 1), strict=True):
        puppet.run(f"open('/proc/self/comm', 'w').write({name!r})")
        begin = time.monotonic()
        puppet.run(f"__import__('time').sleep({seconds})")
        passed.append(time.monotonic() - begin)
    assert tool.end() == 0, tool.errors
    slept = [int(line.split()[1]) for line in tool.output.splitlines() if b"nanosleep" in line]
    # The timer runs before the thread leaves its CPU.
    assert 0.15 <= sum(slept) / 1e9 < passed[0]


def test_ends_leave_nothing(trace: StartTrace, puppets: tuple[Puppet, Puppet]) -> None:
    """After Ctrl-C, a terminal that hangs up, and SIGKILL with a cleanup; a command ends with its trace."""
    scopes = [
        ["-p", str(puppets[0].pid), "--children"],
        ["--uid", "0"],
        ["--comm", "a"],
        ["-c", "/bin/sleep 1000"],
    ]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        running = [trace(*scope, EXEC, terminal=number == signal.SIGHUP) for scope in scopes]
        for one in running:
            one.wait_for(b"Ctrl-C to end.")
            eventually(partial(enabled, one, EXEC.replace(":", "/")))
        killed = number == signal.SIGKILL
        asleep = sleeping(running[-1].pid)
        assert [one.end(number) for one in running] == [-number if killed else 0] * len(running)
        if killed:
            assert CliRunner().invoke(main, ["cleanup"]).exit_code == 0
            os.kill(asleep, signal.SIGKILL)
        else:
            assert not Path(f"/proc/{asleep}").exists()
            assert "note: /bin/sleep 1000: ended by SIGTERM." in running[-1].errors
        assert not any(one.instance.exists() for one in running)


def enabled(one: TraceProcess, event: str) -> bool:
    with suppress(OSError):
        return (one.instance / f"events/{event}/enable").read_text() == "1\n"
    return False


def sleeping(trace: int) -> int:
    """Return the process id of the command of a trace."""
    (child,) = Path(f"/proc/{trace}/task/{trace}/children").read_text().split()
    return int(child)
