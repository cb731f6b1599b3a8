"""Every kind of probe counts 23 exactly, through the agent and its configuration."""

import os
import threading
from pathlib import Path

import pytest

from tests.agent_process import eventually
from tests.kernel.conftest import StartAgent
from tests.kernel.test_counts import TIMES, fsyncs_of_a_pipe

KINDS = {
    "kprobe": "kprobe:do_fsync",
    "kretprobe": "kretprobe:do_fsync",
    "call": "call:do_fsync",
    "pattern": "call:do_fsyn?",
    "syscall": "syscall:fsync",
    "tracepoint": "tracepoint:syscalls:sys_enter_fsync",
}


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("kind", KINDS)
def test_23_calls(start_agent: StartAgent, kind: str) -> None:
    agent = start_agent(f"""
probes:
  - name: sync
    attach: {KINDS[kind]}
    filter: "common_pid == {threading.get_native_id()}"
    metrics: [{{counter: synced_total}}]
""")
    fsyncs_of_a_pipe()
    metrics = agent.scrape()
    probe = "sync_do_fsync" if kind == "pattern" else "sync"
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
    attach: {kind}:do_fsync
    filter: "common_pid == {threading.get_native_id()}"
    metrics: [{{counter: synced_total, labels: [comm]}}]
  - {{name: other, attach: kprobe:do_fsync}}
""")
    fsyncs_of_a_pipe()
    metrics = agent.scrape()
    if not there:
        assert metrics.value("kprobe_up", probe="sync") == 0
        assert "this kernel has no fprobe events (since 6.5)" in agent.output()
        return
    (labels,) = metrics.labels("kprobe_synced_total")
    assert metrics.value("kprobe_synced_total", **labels) == TIMES
    assert metrics.value("kprobe_hits_total", probe="sync") >= TIMES
    if kind == "fexit":
        assert metrics.value("kprobe_return_errors_total", probe="sync", errno="EINVAL") == TIMES


@pytest.mark.needs("kprobe_events")
def test_parameters_by_name(start_agent: StartAgent) -> None:
    """BTF knows where a parameter is, and its type, on kernels too whose own grammar knows no names."""
    agent = start_agent(f"""
probes:
  - name: sync
    attach: kprobe:do_fsync
    fetch: {{fd: fd, datasync: datasync}}
    filter: "common_pid == {threading.get_native_id()} && datasync == 1"
    metrics: [{{counter: synced_total, labels: [fd, datasync]}}]
""")
    read, write = os.pipe()
    for _ in range(TIMES):
        with pytest.raises(OSError, match="Invalid argument"):
            os.fdatasync(write)
        with pytest.raises(OSError, match="Invalid argument"):
            os.fsync(write)
    metrics = agent.scrape()
    assert metrics.labels("kprobe_synced_total") == [{"fd": str(write), "datasync": "1"}]
    assert metrics.value("kprobe_synced_total", fd=str(write), datasync="1") == TIMES
    os.close(read)
    os.close(write)
