"""Each terminal tool under a load of which every row is known, by a process with a hostile name.

A case is a tool, its options and a load that returns the rows that the tool must show.
"""

import os
import signal
import socket
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from kprobe_exporter.trace.table import BOLD, RESET
from tests.kernel.tools import (
    test_block,
    test_files,
    test_kernel,
    test_network,
    test_processes,
    test_scheduler,
    test_time,
)
from tests.support.forked_child import started
from tests.support.tool_cases import SHOWN, Rows, ToolCase, compare, each_case, packaged, run_case
from tests.support.trace_process import SIZE, StartTrace

pytestmark = pytest.mark.needs("initial_pid_namespace")

NOBODY = 4194305
"""A process id above the kernel's limit."""


def kills() -> Rows:
    """Signals to this process and to none."""
    for number in (0, signal.SIGWINCH):
        os.kill(os.getpid(), number)
    with suppress(OSError):
        os.kill(NOBODY, signal.SIGTERM)
    own = {"comm": SHOWN, "tpid": os.getpid(), "result": 0}
    return [
        {**own, "sig": "none"},
        {**own, "sig": "SIGWINCH"},
        {"comm": SHOWN, "tpid": NOBODY, "result": -3, "sig": "SIGTERM"},
    ]


def failed_kills() -> Rows:
    return [row for row in kills() if row["result"] != 0]


def system_calls() -> Rows:
    for _ in range(137):
        os.getppid()
    return [{"comm": SHOWN, "syscall": "getppid", "count": 137}]


def connection() -> Rows:
    """A connection that this side opens and closes first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        peer, (_, own) = server.accept()
        client.close()
        peer.recv(1)
        peer.close()
    here = {"laddr": "127.0.0.1", "raddr": "127.0.0.1", "lport": own, "rport": port}
    states = ["SYN_SENT", "ESTABLISHED", "FIN_WAIT1", "FIN_WAIT2", "CLOSE"]
    return [{**here, "oldstate": a, "newstate": b} for a, b in pairwise(states)]


ACTIVE = ("SYN_SENT", "ESTABLISHED", "FIN_WAIT1", "FIN_WAIT2")


def waits() -> Rows:
    """Two processes that want one CPU: how often and how long this one waited, as the scheduler counts."""
    before = run_delay()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rival = started(lambda: burn(2))
    burn(1)
    os.kill(rival, signal.SIGKILL)
    os.waitpid(rival, 0)
    waited, times = (after - begun for after, begun in zip(run_delay(), before, strict=True))
    return [{"labels": {"pid": str(os.getpid())}, "sum": waited / 1e9, "count": times}]


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def run_delay() -> tuple[int, int]:
    """Return the nanoseconds for which this thread has waited for a CPU, and how often it ran."""
    _, waited, times = map(int, Path("/proc/self/schedstat").read_text().split())
    return waited, times


CASES = [
    ToolCase("killsnoop", kills),
    ToolCase("killsnoop", failed_kills, ("-x",)),
    ToolCase("killsnoop", lambda: [row for row in kills() if row["sig"] == "SIGTERM"], ("--signal", "term")),
    ToolCase("syscount", system_calls, ("-P", "-p", "{pid}"), exact=False),
    ToolCase(
        "tcpstates",
        connection,
        only=lambda row, pid: row["raddr"] == "127.0.0.1" and row["oldstate"] in ACTIVE,
        exact=False,
    ),
]


@each_case(CASES)
def test_a_tool(case: ToolCase, trace: StartTrace) -> None:
    rows, expected = run_case(case, trace)
    assert expected
    compare(rows, expected, exact=case.exact)


ELSEWHERE = {
    "funcgraph": "tests/kernel/test_tracers.py",
    "functrace": "tests/kernel/test_tracers.py",
    "memleak": "tests/kernel/tools/test_memory.py",
    "profile": "tests/kernel/test_profile.py",
    "runqlat": "test_runqlat, below",
}


def test_every_tool_has_a_case() -> None:
    modules = (test_block, test_kernel, test_scheduler, test_time)
    others = {case.command.split()[0] for module in modules for case in module.CASES}
    cases = [*CASES, *test_files.CASES, *test_network.CASES, *test_processes.CASES]
    assert {*packaged()} - {case.tool for case in cases} - others == ELSEWHERE.keys()


def test_runqlat(trace: StartTrace) -> None:
    """The waits are those that the scheduler counts; a few more are at the load's begin and end."""
    case = ToolCase("runqlat", waits, ("-P",), only=lambda row, pid: row["labels"]["pid"] == str(pid))
    [found], [expected] = run_case(case, trace)
    assert found["count"] == pytest.approx(expected["count"], abs=4)
    assert found["sum"] == pytest.approx(expected["sum"], rel=0.02)


class TestEnd:
    """However a tool ends, the kernel is as it was before: the fixture ``as_found`` compares."""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    @pytest.mark.parametrize("tool", ["killsnoop", "syscount", "runqlat"])
    def test_by_a_signal(self, trace: StartTrace, tool: str, number: int) -> None:
        running = trace(tool, "-v", command="tool")
        running.wait_until_tracing()
        assert running.end(number) == 0, running.errors

    def test_by_a_closed_pipe(self, trace: StartTrace) -> None:
        out, stdout = os.pipe()
        running = trace("syscount", "-i", "0.2", "-v", command="tool", stdout=stdout)
        os.close(stdout)
        running.wait_until_tracing()
        os.close(out)
        assert running.wait() == 0, running.errors

    def test_after_its_rows(self, trace: StartTrace) -> None:
        running = trace("killsnoop", "-v", "-n", "3", command="tool")
        running.wait_until_tracing()
        for _ in range(5):
            os.kill(os.getpid(), 0)
        assert running.wait() == 0
        assert len(running.output.splitlines()) == 1 + 3

    def test_on_a_terminal(self, trace: StartTrace) -> None:
        """A table is drawn over the one before, no line is wider than the terminal, and names are escaped."""
        running = trace("syscount", "-P", "-i", "0.3", "-v", command="tool", terminal=True)
        running.wait_for(b"PID", 30)
        assert running.end() == 0
        assert max(map(len, running.output.decode().splitlines())) <= SIZE[1] + len(BOLD + RESET)
