"""Every kind of probe counts exactly 23 calls, through the agent and its configuration."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.kernel_ids import kernel_tid
from tests.support.kernel_modules import FUNCTION, MODULE, reads_of_the_size
from tests.support.patience import eventually
from tests.support.provoked_calls import TIMES, fsyncs_of_a_pipe, opens_of_a_missing_file
from tests.support.system_calls import of_fsync

KINDS = {
    "kprobe": f"kprobe:{of_fsync()}",
    "kretprobe": f"kretprobe:{of_fsync()}",
    "call": f"call:{of_fsync()}",
    "pattern": f"call:{of_fsync()[:-1]}?",
    "syscall": "syscall:fsync",
    "tracepoint": "tracepoint:syscalls:sys_enter_fsync",
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if to.startswith(("sys", "tr")) else pytest.mark.needs("kprobe_events"))
        for kind, to in KINDS.items()
    ],
)
def test_23_calls(start_agent: StartAgent, kind: str) -> None:
    agent = start_agent(f"""
probes:
  - name: sync
    attach: {KINDS[kind]}
    filter: "common_pid == {kernel_tid()}"
    metrics: [{{counter: synced_total}}]
""")
    fsyncs_of_a_pipe()
    metrics = agent.scrape()
    probe = f"sync_{of_fsync()}" if kind == "pattern" else "sync"
    assert metrics.value("kprobe_synced_total") == TIMES
    assert metrics.value("kprobe_exporter_events_total", probe=probe) == TIMES
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe=probe) >= TIMES)
    assert metrics.value("kprobe_up", probe=probe) == 1
    if kind in ("kretprobe", "call", "pattern", "syscall"):
        assert metrics.value("kprobe_return_errors_total", probe=probe, errno="EINVAL") == TIMES


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("kind", ["fentry", "fexit"])
def test_fprobes(start_agent: StartAgent, kind: str, tracefs: Path) -> None:
    there = "f[:[<group>/][<event>]]" in (tracefs / "README").read_text()
    agent = start_agent(f"""
probes:
  - name: sync
    attach: {kind}:{of_fsync()}
    filter: "common_pid == {kernel_tid()}"
    metrics: [{{counter: synced_total, labels: [comm]}}]
  - {{name: other, attach: kprobe:{of_fsync()}}}
""")
    fsyncs_of_a_pipe()
    metrics = agent.scrape()
    if not there:
        assert metrics.value("kprobe_up", probe="sync") == 0
        assert "this kernel has no fprobe events (CONFIG_FPROBE_EVENTS)" in agent.output()
        return
    (labels,) = metrics.labels("kprobe_synced_total")
    assert metrics.value("kprobe_synced_total", **labels) == TIMES
    assert metrics.value("kprobe_hits_total", probe="sync") >= TIMES
    if kind == "fexit":
        assert metrics.value("kprobe_return_errors_total", probe="sync", errno="EINVAL") == TIMES


@pytest.mark.needs("kprobe_events")
def test_parameters_by_name(start_agent: StartAgent) -> None:
    """BTF tells where a parameter is, and its type, also on kernels whose own grammar has no names."""
    root = os.open("/", os.O_PATH)
    agent = start_agent(f"""
probes:
  - name: open
    attach: kprobe:do_sys_openat2
    fetch: {{dfd: dfd, path: "+0(filename):ustring"}}
    filter: "common_pid == {kernel_tid()} && dfd < 0"
    metrics: [{{counter: opened_total, labels: [dfd, path]}}]
""")
    opens_of_a_missing_file()
    with pytest.raises(FileNotFoundError):
        os.open("nonexistent", os.O_RDONLY, dir_fd=root)
    os.close(root)
    metrics = agent.scrape()
    assert {labels["dfd"] for labels in metrics.labels("kprobe_opened_total")} == {"-100"}
    assert metrics.value("kprobe_opened_total", dfd="-100", path="/nonexistent") == TIMES


def has_hits(agent: AgentProcess, probe: str, count: int) -> bool:
    return agent.scrape().value("kprobe_hits_total", probe=probe) == count


@pytest.mark.needs("kprobe_events")
def test_a_module_that_is_loaded_later(start_agent: StartAgent, no_module: None) -> None:
    """A module's probes are armed when it is loaded, and again when it is loaded anew."""
    agent = start_agent(f"""
probes:
  - {{name: counted, attach: "kprobe:{MODULE}:{FUNCTION}"}}
  - {{name: timed, attach: "call:{MODULE}:{FUNCTION}", metrics: [{{counter: shown_total}}]}}
""")
    for times in (1, 2):
        subprocess.run(["modprobe", MODULE], check=True)
        reads_of_the_size(TIMES)
        metrics = agent.scrape()
        assert metrics.value("kprobe_shown_total") == times * TIMES
        assert metrics.value("kprobe_duration_seconds_count", probe="timed") == times * TIMES
        for probe in ("counted", "timed"):
            eventually(partial(has_hits, agent, probe, times * TIMES))
        subprocess.run(["rmmod", MODULE], check=True)
