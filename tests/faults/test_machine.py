"""An agent keeps working when CPUs go offline, the clock steps, descriptors run out or memory is short."""

import os
import resource
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kprobe_exporter.cli import main
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics, running
from tests.support.forked_child import in_a_child
from tests.support.kernel_modules import unload
from tests.support.otlp_outcomes import exported
from tests.support.patience import eventually
from tests.support.receivers import rotel
from tests.support.suffering import DELIVERED, HITS, LOST, TIMES

pytestmark = [
    pytest.mark.needs("kprobe_events"),
    pytest.mark.skipif("KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on"),
]

CPU1 = Path("/sys/devices/system/cpu/cpu1/online")
CGROUPS = Path("/sys/fs/cgroup")
MANY = 1000

CONFIG = """
global: {series_ttl: 10m}
probes: [{name: ppid, attach: 'kprobe:sys_getppid', metrics: [{counter: ppid_total, labels: [cpu]}]}]
"""


def on_cpu(cpu: int, call: Callable[[], object]) -> None:
    """A child that is bound to this CPU makes MANY calls."""

    def work() -> None:
        os.sched_setaffinity(0, {cpu})
        for _ in range(MANY):
            call()

    in_a_child(work)


def hits(agent: AgentProcess, times: int) -> Callable[[], bool]:
    """A condition: so many hits, or up to 99 more, since a CPU that comes online starts programs."""
    return lambda: times <= agent.scrape().value(HITS, probe="ppid") < times + 100


@pytest.mark.skipif(not CPU1.exists(), reason="one CPU, or one that cannot go")
def test_a_cpu_goes_offline_and_comes_back(start_agent: StartAgent) -> None:
    """The events in the buffer of a CPU that goes offline are read, and no event is lost."""
    agent = start_agent(CONFIG)
    try:
        on_cpu(1, os.getppid)
        CPU1.write_text("0")
        on_cpu(0, os.getppid)
        eventually(hits(agent, 2 * MANY))
        CPU1.write_text("1")
        on_cpu(1, os.getppid)
        eventually(hits(agent, 3 * MANY))
    finally:
        CPU1.write_text("1")

    def all_delivered(metrics: Metrics) -> bool:
        return metrics.value(DELIVERED, probe="ppid") == metrics.value(HITS, probe="ppid")

    metrics = agent.scrape_until(all_delivered)
    assert metrics.total(LOST) == 0
    assert metrics.value("kprobe_ppid_total", cpu="1") >= 2 * MANY
    assert "Traceback" not in agent.output()


@contextmanager
def stepped(seconds: float) -> Iterator[None]:
    """Change the time of day, as date(1) does; restore it on exit."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)
    try:
        yield
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - seconds)


@pytest.mark.parametrize("seconds", [3600, -86400])
def test_the_clock_is_stepped(
    start_agent: StartAgent, looks_around: Callable[[], None], seconds: int
) -> None:
    """No series disappears or falls because of the step, and durations come from another clock."""
    begun = time.monotonic()
    agent = start_agent(
        CONFIG.replace(
            "probes: [", "probes: [{name: call, attach: 'syscall:getppid', filter: 'common_pid > 0'},"
        )
    )
    on_cpu(0, os.getppid)
    eventually(hits(agent, MANY))
    before = agent.scrape()
    with stepped(seconds):
        on_cpu(0, os.getppid)
        eventually(hits(agent, 2 * MANY))
        looks_around()
        after = agent.scrape()
    for (name, labels), value in before.items():
        if name.endswith(("_total", "_count", "_bucket")):
            assert after[name, labels] >= value, name
    assert after.value("kprobe_ppid_total", cpu="0") == 2 * MANY
    assert after.value("kprobe_up", probe="ppid") == 1
    assert 0 <= after["kprobe_exporter_kernel_read_age_seconds", frozenset()] < time.monotonic() - begun
    assert after.value(LOST, reason="negative") == 0
    assert after.value("kprobe_duration_seconds_sum", probe="call") < time.monotonic() - begun


@pytest.mark.parametrize("seconds", [3600, -86400])
def test_what_is_exported_has_the_time_of_day_of_its_moment(
    start_agent: StartAgent, tmp_path: Path, seconds: int
) -> None:
    """After a step by +1 h or -1 day, log records carry the clock's time before and after, respectively."""
    with rotel(tmp_path) as server:
        export = f"otlp: {{endpoint: '{server.endpoints['http/protobuf']}'}}\n"
        filtered = f"filter: 'common_pid == {os.getpid()}', export: log"
        agent = start_agent(export + CONFIG.replace("metrics: [{", f"{filtered}, metrics: [{{"))

        def arrived() -> list[int]:
            return [int(time) for time in server.found(r"Timestamp: (\d+)")]

        def fire(already: int) -> tuple[int, int]:
            begun = time.time_ns()
            for _ in range(TIMES):
                os.getppid()
            ended = time.time_ns()
            exported(agent, logs=already + TIMES)
            eventually(lambda: len(arrived()) == already + TIMES)
            return begun, ended

        first, number = fire(0), TIMES

        def follows() -> bool:
            """Whether a new record follows the clock: the agent compares the clocks only once a second."""
            nonlocal number
            begun = time.time_ns()
            os.getppid()
            number += 1
            exported(agent, logs=number)
            eventually(lambda: len(arrived()) == number)
            return begun <= arrived()[-1] <= time.time_ns()

        with stepped(seconds):
            eventually(follows)
            second = fire(number)
        found = arrived()
    assert all(first[0] <= at <= first[1] for at in found[:TIMES])
    assert all(second[0] <= at <= second[1] for at in found[number:])


def test_no_descriptor_is_left(start_agent: StartAgent) -> None:
    """Scrapes fail or wait, the log is not flooded, events are counted; afterwards all works again."""
    agent = start_agent(CONFIG)
    on_cpu(0, os.getppid)
    eventually(hits(agent, MANY))
    soft, hard = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    lines = len(agent.output().splitlines())
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        eventually(lambda: "[descriptors_exhausted]" in agent.output())
        for _ in range(5):
            with pytest.raises(OSError, match=r"timed out|closed|refused|reset"):
                urllib.request.urlopen(agent.address + "/metrics", timeout=0.5).close()
        on_cpu(0, os.getppid)
        assert agent.poll() is None
    finally:
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (soft, hard))
    eventually(hits(agent, 2 * MANY))
    eventually(lambda: "it is over [descriptors_exhausted]" in agent.output())
    metrics = agent.scrape()
    assert metrics.value("kprobe_exporter_fault", fault="descriptors_exhausted") == 0
    assert metrics.value("kprobe_exporter_faults_total", fault="descriptors_exhausted") == 1
    assert metrics.value(DELIVERED, probe="ppid") == 2 * MANY
    assert "Traceback" not in agent.output()
    assert len(agent.output().splitlines()) - lines < 10, agent.output()


SWAP = 256 << 20
SPARE, STEP = 6 << 20, 1 << 20
"""Bytes that the agent may have at first beyond what it needs to serve, and by which its limit is then
lowered until memory is short."""

FLOOD = 40_000
SEEKS = """
probes:
  - name: seeks
    attach: "kprobe:sys_getpgid"
    fetch: {group: '$arg1:u64', sp: '$stack:u64'}
    metrics:
      - {counter: seeks_total, labels: [group, sp]}
      - {histogram: seek_bytes, value: sp, labels: [group]}
"""


@pytest.fixture
def swap() -> Iterator[None]:
    """Swap space on zram; without it, the kernel cannot reclaim a program's own pages."""
    zram = Path("/sys/block/zram0")
    subprocess.run(["modprobe", "zram"], check=True)
    try:
        (zram / "disksize").write_text(str(SWAP))
        subprocess.run(["mkswap", "/dev/zram0"], check=True, capture_output=True)
        subprocess.run(["swapon", "/dev/zram0"], check=True)
        yield
        subprocess.run(["swapoff", "/dev/zram0"], check=True)
    finally:
        (zram / "reset").write_text("1")
        unload("zram")


def patient(agent: AgentProcess) -> Metrics:
    """A scrape, however long it takes to read the pages back."""
    found: list[Metrics] = []

    def answered() -> bool:
        with suppress(OSError):
            found.append(agent.scrape())
        return bool(found)

    eventually(answered, 60)
    return found[0]


def seek(times: int) -> None:
    for number in range(times):
        with suppress(ProcessLookupError):
            os.getpgid(number + 100_000)


def restrict(group: Path, more: int) -> int:
    """Limit the group to its current use plus ``more`` bytes; return the limit."""
    limit = int((group / "memory.current").read_text()) + more
    (group / "memory.max").write_text(str(limit))
    return limit


def test_memory_is_short(tmp_path: Path, as_found: None, swap: None) -> None:
    """A flood of label values, in a cgroup with little room for them, and with less until the kernel reports
    that it reclaimed pages: the agent counts and serves. The room that the labels need depends on how many
    events come at once, and so on the machine."""
    (CGROUPS / "cgroup.subtree_control").write_text("+memory")
    group = CGROUPS / "kprobe_exporter_test"
    group.mkdir()

    def limited(arguments: list[str]) -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        main(arguments)

    def happened(event: str) -> int:
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
        return int(events[event])

    config = tmp_path / "config.yaml"
    config.write_text(SEEKS)
    config.chmod(0o600)
    arguments = ["run", "--web.listen-address", "127.0.0.1:0", "--config", str(config)]
    agent = AgentProcess(tmp_path / "log", limited, arguments)
    try:
        with running(agent):
            agent.wait_until_serving()
            agent.scrape()
            limit = restrict(group, SPARE)
            seek(FLOOD)
            overflow = "kprobe_exporter_series_overflow_total"
            eventually(lambda: patient(agent).value(overflow, metric="kprobe_seeks_total") > 0, 60)
            eventually(lambda: patient(agent).value(HITS, probe="seeks") >= FLOOD)
            while happened("max") == 0:
                limit = restrict(group, -STEP)
                seek(MANY)
                patient(agent)
            metrics = patient(agent)
            assert metrics.value("kprobe_up", probe="seeks") == 1
            assert happened("oom_kill") == 0
            assert int((group / "memory.current").read_text()) <= limit
            seek(TIMES)
            expected = metrics.value(HITS, probe="seeks") + TIMES
            eventually(lambda: patient(agent).value(HITS, probe="seeks") >= expected)
            assert "Traceback" not in agent.output()
    finally:
        group.rmdir()
