"""Calls and pairs that the kernel joins: the same numbers as the agent's, and losses are told."""

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.model.pairs import OPEN_ROWS
from tests.bench.bpftrace import LIVE, SAYS_SO
from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.bpftrace_process import end, histogram
from tests.support.joined_calls import SLEEPS, lost, nap, nested_epolls
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually, patience
from tests.vm.kernels import HIST

pytestmark = pytest.mark.needs("kprobe_events")

BOUND = 2**26 / 1e9
"""Seconds: 67 ms, a bound that separates naps of 150 ms from calls that do not sleep."""

STEPS = "{linear: {start: 0.05, width: 0.05, count: 40}}"

BOTH = "{comm: comm, result: return}"
"""Labels of the first event and of the last."""

CALLS = 20_000
"""More than a buffer of 64 KiB a CPU holds events of."""

BEYOND = 500
"""First events that find the table of open calls full."""

POWERS = range(20, 33, 2)
"""Bounds of durations, as powers of two of nanoseconds: from 1 ms to 4.3 s."""

PLAN = "kernel" if has(HIST) else "events"


def counted(agent: AgentProcess, **expected: int) -> Metrics:
    """Wait until each probe has counted so many durations; return a scrape."""
    name = "kprobe_duration_seconds_count"
    # Each scrape makes the kernel sort all tables, which takes an emulated processor a while.
    eventually(
        lambda: all(agent.scrape().value(name, probe=one) >= n for one, n in expected.items()), pause=1
    )
    return agent.scrape()


def plans(agent: AgentProcess) -> dict[str, str]:
    return {one["probe"]: one["plan"] for one in agent.scrape().labels("kprobe_info")}


def test_both_plans_tell_the_same(start_agent: StartAgent, other: ThreadPoolExecutor) -> None:
    """Of naps and of calls that fail at once; with labels of both events, and conditions by both."""
    tid = other.submit(kernel_tid).result()
    probe = """
  - name: {name}
    attach: [{attach}]
    aggregate: {plan}
    returns: int
    filter: "tid == {tid}"
    duration_buckets: [{bound}]
    metrics:
      - {{histogram: {name}_seconds, value: duration, labels: {both}, buckets: [{bound}]}}
      - {{histogram: {name}_steps, value: duration, buckets: {steps}}}
      - {{counter: {name}_long_total, where: "duration > 100ms && return == 0", labels: [tid]}}
      - {{counter: {name}_short_total, where: "duration < 60ms"}}
"""
    ways = {"call": "call:hrtimer_nanosleep", "syscall": "syscall:clock_nanosleep"}
    probes = "".join(
        probe.format(
            name=f"{kind}_{plan}", plan=plan, attach=way, tid=tid, bound=BOUND, steps=STEPS, both=BOTH
        )
        for kind, way in ways.items()
        for plan in ("kernel", "events")
    )
    agent = start_agent(f"probes:{probes}")
    assert plans(agent) == {
        f"{kind}_{plan}": PLAN if plan == "kernel" else plan for kind in ways for plan in ("kernel", "events")
    }
    naps = list(other.map(nap, [SLEEPS[0]] * 4 + [0.0] * 7))
    metrics = counted(
        agent, **{f"{kind}_{plan}": len(naps) for kind in ways for plan in ("kernel", "events")}
    )
    for kind in ways:
        buckets = {}
        for plan in ("kernel", "events"):
            name = f"{kind}_{plan}"
            (labels,) = metrics.labels(f"kprobe_{name}_seconds_count")
            assert labels["result"] == "0"
            assert metrics.value(f"kprobe_{name}_seconds_count", **labels) == len(naps)
            assert metrics.value(f"kprobe_{name}_long_total", tid=str(tid)) == 4
            assert metrics.value(f"kprobe_{name}_short_total") == 7
            assert metrics.value("kprobe_exporter_events_total", probe=name) == len(naps)
            assert metrics.value("kprobe_duration_seconds_count", probe=name) == len(naps)
            buckets[plan] = [
                metrics.value(f"kprobe_{name}_seconds_bucket", le=str(BOUND), **labels),
                metrics.value("kprobe_duration_seconds_bucket", probe=name, le=str(BOUND)),
                *(
                    metrics.value(f"kprobe_{name}_steps_bucket", le=le)
                    for le in ("0.05", "0.1", "2.0", "+Inf")
                ),
            ]
            total = metrics.value(f"kprobe_{name}_steps_sum")
            assert sum(least for least, _ in naps) <= total <= sum(most for _, most in naps)
        assert buckets["kernel"] == buckets["events"] == [7, 7, 7, 7, 11, 11]
    assert lost(agent) == {}


def test_a_function_that_calls_itself(start_agent: StartAgent) -> None:
    """Each level is a call of its own, because the stack pointer differs."""
    agent = start_agent("""
probes:
  - {name: loop, attach: "call:ep_loop_check_proc", aggregate: kernel}
""")
    depth = 4
    with nested_epolls(depth):
        metrics = counted(agent, loop=sum(range(1, depth)))
    assert plans(agent) == {"loop": PLAN}
    assert metrics.value("kprobe_duration_seconds_count", probe="loop") == sum(range(1, depth))
    assert metrics.value("kprobe_hits_total", probe="loop") == sum(range(1, depth))
    assert lost(agent) == {}


PAIR = """
probes:
  - name: pair
    attach:
      pair:
        from: {{to: "tracepoint:syscalls:sys_enter_getppid", filter: "{only}"}}
        to: "tracepoint:syscalls:sys_exit_getuid"
        key: tid
    aggregate: kernel
"""


@pytest.mark.needs(HIST)
def test_a_first_event_without_an_end_is_unpaired(start_agent: StartAgent, other: ThreadPoolExecutor) -> None:
    """An end without a first event is none, as where the agent joins."""
    agent = start_agent(PAIR.format(only=f"common_pid == {other.submit(kernel_tid).result()}"))

    def work() -> None:
        for _ in range(9):
            os.getppid()
        for _ in range(5):
            os.getuid()

    other.submit(work).result()
    metrics = counted(agent, pair=1)
    assert metrics.value("kprobe_duration_seconds_count", probe="pair") == 1
    assert metrics.value("kprobe_exporter_events_total", probe="pair") == 1
    # Of eight, since one may still end. The table of open calls is not read at each scrape.
    eventually(lambda: lost(agent) == {"unpaired": 7}, pause=1)


@pytest.mark.needs(HIST)
def test_two_probes_at_one_function_and_a_reload(
    start_agent: StartAgent, other: ThreadPoolExecutor, tracefs: Path, tmp_path: Path
) -> None:
    """Each has triggers of its own; one that goes leaves the other's, and the numbers go on."""
    tid = other.submit(kernel_tid).result()
    one = (
        '  - {{name: {name}, attach: "syscall:getppid", aggregate: kernel, filter: "tid == {tid}",'
        " metrics: [{{counter: {name}_total, labels: [tid]}}]}}\n"
    )
    both = "probes:\n" + one.format(name="first", tid=tid) + one.format(name="second", tid=tid)
    agent = start_agent(both)

    def work() -> None:
        for _ in range(23):
            os.getppid()

    other.submit(work).result()
    metrics = counted(agent, first=23, second=23)
    assert [metrics.value(f"kprobe_{name}_total", tid=str(tid)) for name in ("first", "second")] == [23, 23]
    (tmp_path / "config0.yaml").write_text("probes:\n" + one.format(name="second", tid=tid))
    agent.signal(signal.SIGHUP)
    eventually(lambda: list(plans(agent)) == ["second"])
    other.submit(work).result()
    assert counted(agent, second=46).value("kprobe_second_total", tid=str(tid)) == 46
    assert lost(agent) == {}
    assert len((tracefs / "synthetic_events").read_text().splitlines()) == 1


@pytest.mark.needs(HIST)
def test_a_trigger_that_another_process_removes_comes_back(
    start_agent: StartAgent, other: ThreadPoolExecutor, tracefs: Path
) -> None:
    """The numbers go on, and what another probe has is left alone."""
    agent = start_agent("""
probes:
  - {name: sleep, attach: "call:hrtimer_nanosleep", aggregate: kernel}
  - {name: ppid, attach: "syscall:getppid", aggregate: kernel}
""")
    other.submit(nap, 0.01).result()
    before = counted(agent, sleep=1).value("kprobe_duration_seconds_count", probe="sleep")
    events = tracefs / "instances/kprobe_exporter.pairs/events/kprobe_exporter"
    [(file, trigger)] = [
        (file, line)
        for file in events.glob("sleep*/trigger")
        for line in file.read_text().splitlines()
        if "onmatch" in line
    ]
    file.write_text(f"!{trigger.partition(' [')[0]}")
    eventually(lambda: "onmatch" in file.read_text() if file.exists() else False, pause=0.2)
    eventually(lambda: "the probe 'sleep': another process disabled it" in agent.output())
    assert "the probe 'ppid': another process" not in agent.output()
    other.submit(nap, 0.01).result()
    counted(agent, sleep=int(before) + 1)


@pytest.mark.needs(HIST)
def test_a_killed_agent_leaves_nothing_after_cleanup(start_agent: StartAgent, tracefs: Path) -> None:
    agent = start_agent("""
probes:
  - {name: sleep, attach: "call:hrtimer_nanosleep", aggregate: kernel}
  - {name: ppid, attach: "syscall:getppid", aggregate: kernel}
""")
    assert plans(agent) == {"sleep": "kernel", "ppid": "kernel"}
    agent.end(signal.SIGKILL)
    assert "kprobe_exporter_PAIR_" in (tracefs / "synthetic_events").read_text()
    assert CliRunner().invoke(main, ["cleanup"]).exit_code == 0
    assert (tracefs / "synthetic_events").read_text() == ""
    assert not [path.name for path in (tracefs / "instances").iterdir() if path.name.startswith("kprobe_exp")]


def test_the_agent_says_if_it_joins_instead(start_agent: StartAgent, other: ThreadPoolExecutor) -> None:
    agent = start_agent('probes: [{name: sleep, attach: "call:hrtimer_nanosleep", aggregate: kernel}]')
    other.submit(nap, 0.01).result()
    counted(agent, sleep=1)
    assert plans(agent) == {"sleep": PLAN}
    said = "the probe 'sleep': the time between its two events is measured; this kernel does not join events"
    assert agent.output().count(said) == (0 if has(HIST) else 1)


@pytest.mark.needs(HIST)
def test_a_reader_that_is_stopped_loses_nothing(start_agent: StartAgent, other: ThreadPoolExecutor) -> None:
    """More pairs than a buffer would hold, while the agent does not run: each is counted."""
    tid = other.submit(kernel_tid).result()
    agent = start_agent(f"""
global: {{buffer_size: 64KiB}}
probes:
  - {{name: sums, attach: "syscall:getppid", aggregate: kernel, filter: "tid == {tid}", limit: none}}
  - {{name: read, attach: "syscall:getppid", aggregate: events, filter: "tid == {tid}", limit: none}}
""")

    def work() -> None:
        for _ in range(CALLS):
            os.getppid()

    agent.signal(signal.SIGSTOP)
    other.submit(work).result()
    agent.signal(signal.SIGCONT)
    metrics = counted(agent, sums=CALLS)
    assert metrics.value("kprobe_duration_seconds_count", probe="sums") == CALLS
    assert metrics.value("kprobe_duration_seconds_count", probe="read") < CALLS / 2
    assert metrics.value("kprobe_exporter_events_lost_total", reason="overrun") > CALLS


@pytest.mark.needs(HIST)
def test_a_full_table_of_open_calls_is_told(start_agent: StartAgent, other: ThreadPoolExecutor) -> None:
    """Each first event has a key of its own, and no end: what finds no row is lost as such."""
    only = f"common_pid == {other.submit(kernel_tid).result()}"
    agent = start_agent(f"""
probes:
  - name: full
    attach:
      pair:
        from: {{to: "tracepoint:syscalls:sys_enter_lseek", fetch: {{place: offset}}, filter: "{only}"}}
        to: {{to: "tracepoint:syscalls:sys_enter_ftruncate", fetch: {{place: length}}}}
        key: place
    aggregate: kernel
    limit: none
""")

    def work() -> None:
        file = os.open("/dev/zero", os.O_RDONLY)  # Python's own open() calls lseek
        for place in range(OPEN_ROWS + BEYOND):
            os.lseek(file, place, os.SEEK_SET)
        os.close(file)

    other.submit(work).result()
    eventually(lambda: lost(agent).get("table_full", 0) == BEYOND, pause=1)
    eventually(lambda: "its table of open calls is full, and begins anew" in agent.output())
    assert lost(agent) == {"table_full": BEYOND}


def test_buckets_are_those_of_bpftrace(
    start_agent: StartAgent, other: ThreadPoolExecutor, tmp_path: Path
) -> None:
    tid = other.submit(kernel_tid).result()
    agent = start_agent(f"""
probes:
  - name: naps
    attach: syscall:clock_nanosleep
    aggregate: kernel
    filter: "tid == {tid}"
    duration_buckets: [{", ".join(str(2**power / 1e9) for power in POWERS)}]
""")
    call = "tracepoint:syscalls:sys_{}_clock_nanosleep"
    program = f"""
{call.format("enter")} /tid == {tid}/ {{ @begun = nsecs; }}
{call.format("exit")} /@begun/ {{ @took = hist(nsecs - @begun); @begun = 0; }}
{SAYS_SO}"""
    log = tmp_path / "bpftrace.log"
    with log.open("w") as out, subprocess.Popen(["bpftrace", "-e", program], stdout=out) as tool:
        try:
            eventually(lambda: LIVE in log.read_text(), 30)
            naps = list(other.map(nap, [0.011] * 3 + [0.15] * 4 + [0.7] * 2))
        finally:
            end(tool, patience(30))
    theirs = histogram(log.read_text())
    metrics = counted(agent, naps=len(naps))
    below = [
        metrics.value("kprobe_duration_seconds_bucket", probe="naps", le=str(2**power / 1e9))
        for power in POWERS
    ]
    assert below == [sum(count for low, count in theirs.items() if low < 2**power) for power in POWERS], (
        theirs
    )
    assert below[-1] == len(naps) == sum(theirs.values())
