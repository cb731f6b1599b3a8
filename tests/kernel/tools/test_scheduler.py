"""The tools of the scheduler against sleeps of known length, and what the kernel accounts for a task."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.tools.harness import Facts, Seen, ToolCase, burn, parametrized, run_tool
from tests.support.forked_child import started
from tests.support.trace_process import StartTrace

SLEEPS, LENGTH = 10, 0.1


def contend() -> Facts:
    """Let two children run on one CPU; return what the kernel accounts for the whole life of the first."""
    os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
    task = started(lambda: burn(1))
    rival = started(lambda: burn(5))
    os.waitid(os.P_PID, task, os.WEXITED | os.WNOWAIT)
    accounted = map(int, Path(f"/proc/{task}/schedstat").read_text().split())
    os.kill(rival, signal.SIGKILL)
    for child in (task, rival):
        os.waitpid(child, 0)
    return {"task": task} | dict(zip(("ran", "waited", "slices"), accounted, strict=True))


def sleep() -> Facts:
    begin = time.monotonic()
    for _ in range(SLEEPS):
        time.sleep(LENGTH)
    return {"slept": time.monotonic() - begin}


def all_waits(seen: Seen) -> None:
    rows = [row for row in seen.rows if row["tid"] == seen.facts["task"]]
    assert sum(row["lat_us"] for row in rows) / 1e6 == pytest.approx(seen.facts["waited"] / 1e9, rel=0.05)


def long_waits(seen: Seen) -> None:
    """The waits that are not shown were shorter than a millisecond each."""
    rows = [row for row in seen.rows if row["tid"] == seen.facts["task"]]
    assert all(row["lat_us"] >= 1000 for row in seen.rows)
    shown, waited = sum(row["lat_us"] for row in rows) / 1e6, seen.facts["waited"] / 1e9
    assert 0.95 * waited - 0.001 * (seen.facts["slices"] - len(rows)) <= shown <= 1.05 * waited
    assert rows
    assert all(row["prev_tid"] != row["tid"] and row["prev_comm"] for row in rows)


def on_cpu(seen: Seen) -> None:
    [found] = seen.histograms(tid=str(seen.facts["task"]))
    assert found["sum"] == pytest.approx(seen.facts["ran"] / 1e9, abs=0.1)
    assert found["count"] == pytest.approx(seen.facts["slices"], rel=0.05, abs=4)


def off_cpu(seen: Seen) -> None:
    [found] = seen.histograms(tid=str(seen.pid))
    assert found["sum"] == pytest.approx(seen.facts["slept"], rel=0.1)
    assert sum(bucket["count"] for bucket in found["buckets"] if bucket["le"] > LENGTH) >= SLEEPS


def by_stack(seen: Seen) -> None:
    """The timer of a sleep begins before the thread leaves its CPU."""
    slept = [row for row in seen.rows if "nanosleep" in row["stack"]]
    assert 0.9 * SLEEPS * LENGTH <= sum(row["number"] for row in slept) / 1e9 <= seen.facts["slept"] + 0.05


CASES = [
    ToolCase("runqslower 0", contend, all_waits),
    ToolCase("runqslower 1000 -P", contend, long_waits),
    ToolCase("cpudist -L", contend, on_cpu),
    ToolCase("cpudist -O -L", sleep, off_cpu),
    ToolCase("offcputime -p {pid}", sleep, by_stack),
    ToolCase("offcputime -p {pid} -m 50000", sleep, by_stack),
]


@parametrized(CASES)
def test_a_tool(case: ToolCase, trace: StartTrace, on_cpu: Callable[[int], None]) -> None:
    on_cpu(0)  # the load has another one
    case.compare(run_tool(trace, case.command, case.load))


@pytest.mark.parametrize("tool", ["stackcount t:sched:sched_switch", "offcputime"])
def test_events_at_the_end_have_their_stacks(trace: StartTrace, tool: str) -> None:
    """The kernel waits while it removes the trigger of stacks, and the CPUs go on switching."""
    running = trace(*tool.split(), "--duration", "0.5", command="tool")
    assert running.wait() == 0
    assert running.output
    assert "lost" not in running.errors
