"""Examples of cgroups: throttling, migrations, statistics, want of memory."""

import mmap
import os
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import has
from tests.kernel.ebpf_exporter.counted import TIMES, Grown, at_rest, calls, keep_on, present
from tests.support.agent_process import AgentProcess
from tests.support.unified_cgroup import group, statistics, within

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = ("cfs-throttling", "cgroup", "cgroup-rstat-flushing", "cgroup_id_map", "oomkill")

PERIOD = 0.1
"""Seconds in which a cgroup may use its quota of CPU time."""
MIB = 1 << 20


def test_a_cgroup_is_held_back(grown: Grown) -> None:
    """A child computes with a tenth of one CPU. The kernel adds up the time itself.

    Its nr_throttled counts periods, of which a queue may be held back for several at once. On two CPUs, two
    queues may be held back in one period. The agent is on the other CPU: interrupts that arrive while it
    runs, such as that of the timer that releases the queue, are not recorded (docs/kinds.md).
    """
    name, labels = "cfs_throttling_seconds", {"cgroup": "held-back"}
    with group("held-back", "cpu") as where, calls("unthrottle_cfs_rq") as made:
        (where / "cpu.max").write_text(f"10000 {PERIOD * 1e6:.0f}")
        keep_on(1, grown.agent.pid)
        begun = time.monotonic()
        within(where, lambda: _compute(where, 5), cpus={0})
        released = at_rest(made, "unthrottle_cfs_rq")  # before scrapes keep the agent running
        passed = time.monotonic() - begun
        assert released > 1
        grown.until(1, f"{name}_count", **labels)
        counted = statistics(where)
        metrics = grown.agent.scrape()
    times = grown.of(metrics, f"{name}_count", **labels)
    assert 1 <= times <= min(released, counted["nr_throttled"])
    seconds, least = grown.of(metrics, f"{name}_sum", **labels), counted["throttled_usec"] / 1e6
    # Where the kernel holds back task by task, its own time is without that of a queue with no task in it.
    by_task = present("throttle_cfs_rq_work", "throttle_cfs_rq") == "throttle_cfs_rq_work"
    # A timer may release it after the child has ended.
    assert seconds <= (passed if by_task else 1.2 * least)
    # The timer that releases a queue is on the agent's CPU now and then: on a busy machine often.
    if times >= released - 1:
        assert 0.8 * least <= seconds


def _compute(where: Path, times: int) -> None:
    while statistics(where)["nr_throttled"] < times:
        sum(range(10_000))


@pytest.mark.parametrize(
    ("name", "service"), [("movers", ""), ("system.slice/movers.service", "system.slice/movers.service")]
)
def test_tasks_are_moved(grown: Grown, name: str, service: str) -> None:
    """A child asks for one CPU and then for the other one; the kernel counts the moves itself."""
    read, write = os.pipe()
    with group(name) as where:
        within(where, lambda: os.write(write, str(_move()).encode()))
        moved = int(os.read(read, 100))
        metrics = grown.agent.scrape()
    for fd in (read, write):
        os.close(fd)
    assert moved >= TIMES
    seen = grown.of(metrics, "cgroup_sched_migrations_total", cgroup=f"/{name}")
    assert moved <= seen <= moved + 1  # a busy kernel may move it before the first or after the last look
    by_service = grown.of(metrics, "service_sched_migrations_total", service=service)
    assert by_service >= moved if not service else by_service == seen


def _move() -> int:
    """Move this thread TIMES times and more; return how often it was moved while it was in its cgroup."""
    before = _migrations()
    for number in range(TIMES + 1):  # it may be on the first CPU already
        os.sched_setaffinity(0, {number % 2})
    return _migrations() - before


def _migrations() -> int:
    text = Path("/proc/self/sched").read_text()
    return int(text.partition("se.nr_migrations")[2].split()[1])


def test_statistics_are_added_up(agent: AgentProcess) -> None:
    """Only the test reads a file of this cgroup, at level 2.

    The kernel also adds up those of the cgroups that earlier tests removed, some time later: what the agent
    counts has to lie within what the test counts.
    """
    function = present("cgroup_rstat_flush_locked", "css_rstat_flush")
    with calls(function) as made:
        before = made()[function]
        grown = Grown(agent)
        with group("outer/statistics") as where:
            for _ in range(TIMES):
                statistics(where)
            metrics = agent.scrape()
            counted = made()[function] - before
    seen = grown.of(metrics, "cgroup_rstat_flush_total", level="2")
    assert TIMES <= seen <= counted
    if has("events/cgroup/cgroup_rstat_locked"):
        locked = grown.of(metrics, "cgroup_rstat_locked_total", level="2")
        assert locked >= TIMES


def test_a_cgroup_is_out_of_memory(grown: Grown) -> None:
    with group("forgetful", "memory") as where:
        (where / "memory.max").write_text(str(16 * MIB))
        child = os.fork()
        if child == 0:
            (where / "cgroup.procs").write_text("0")
            with mmap.mmap(-1, 32 * MIB) as much:
                much.write(bytes(32 * MIB))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        events = dict(line.split() for line in (where / "memory.events").read_text().splitlines())
        labels = {"cgroup": "forgetful", "global": "0"}
        assert grown("oom_kills_by_limit_total", **labels) == int(events["oom_kill"]) == 1
