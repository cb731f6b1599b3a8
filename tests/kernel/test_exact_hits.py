"""Each hit is an event or is told as lost, also while probes start, change and end under load."""

import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.patience import eventually, patience
from tests.support.provoked_calls import flood, getppid

pytestmark = pytest.mark.needs("kprobe_events")

HITS, EVENTS = "kprobe_hits_total", "kprobe_exporter_events_total"
LOST = "kprobe_exporter_events_lost_total"
RELOADED = "kprobe_exporter_config_last_reload_success_timestamp_seconds"
RELOADS = 4

NAMES = ("enters", "call", "table", "function")
PROBES = """
global: {buffer_size: 16MiB, limit: none}
probes:
  - name: enters
    attach: tracepoint:syscalls:sys_enter_getppid
    limit: none
    metrics: [{counter: enters_total, labels: [tid], help: "%(help)s"}]
  - {name: call, attach: "syscall:getppid", limit: none, duration_buckets: [%(bound)s]}
  - name: table
    attach: tracepoint:syscalls:sys_enter_getppid
    aggregate: kernel
    limit: none
    metrics: [{counter: table_total, labels: [tid], help: "%(help)s"}]
  - name: function
    attach: kprobe:sys_getppid
    limit: none
    metrics: [{counter: function_total, labels: [tid], help: "%(help)s"}]
"""


def text(number: int) -> str:
    """A configuration in which each probe differs from that of another number."""
    return PROBES % {"help": f"Number {number}.", "bound": number + 1}


def calls() -> None:
    """Call getppid as fast as the agent can read it, on a slow machine too."""
    getppid(50)
    time.sleep(patience(0.002))


def reloaded_after(agent: AgentProcess, before: float) -> bool:
    return agent.scrape().value(RELOADED) > before


def check(agent: AgentProcess) -> None:
    """Check that hits are events or lost, once the load has ended. The only call in it may be unpaired."""
    found: list[Metrics] = []

    def settled() -> bool:
        time.sleep(1)  # the kernel's counts are read once a second
        found.append(agent.scrape())
        return len(found) > 3 and all(
            len({metrics.value(HITS, probe=name) for metrics in found[-3:]}) == 1 for name in NAMES
        )

    eventually(settled, 60)
    metrics = found[-1]
    lost = {one["reason"]: metrics.value(LOST, **one) for one in metrics.labels(LOST)}
    assert not any(lost[reason] for reason in ("overrun", "commit_overrun", "dropped", "unparsed")), lost
    missing = {name: metrics.value(HITS, probe=name) - metrics.value(EVENTS, probe=name) for name in NAMES}
    assert min(metrics.value(EVENTS, probe=name) for name in NAMES) > 500
    assert missing["enters"] + missing["call"] + missing["function"] == sum(lost.values()), (missing, lost)
    assert (missing["enters"], missing["table"]) == (0, 0), lost


def test_a_start_under_load(start_agent: StartAgent) -> None:
    with flood(calls):
        agent = start_agent(text(0))
        time.sleep(2)
    check(agent)


def test_reloads_under_load(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(text(0))
    with flood(calls):
        for number in range(1, RELOADS + 1):
            done = partial(reloaded_after, agent, agent.scrape().value(RELOADED))
            (tmp_path / "config0.yaml").write_text(text(number))
            agent.signal(signal.SIGHUP)
            eventually(done, 60)
            time.sleep(0.5)
    check(agent)
