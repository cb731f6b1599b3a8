"""The numbers are right: 23 calls of one thread are 23 wherever they are counted."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.support.provoked_calls import TIMES, fsyncs_of_a_pipe, getppid, opens_of_a_missing_file
from tests.support.system_calls import of_fsync
from tests.vm.kernels import HIST


def test_failed_opens_of_one_thread(start_agent: StartAgent) -> None:
    tid = kernel_tid()
    agent = start_agent(f"""
probes:
  - name: open
    attach:
      - kretprobe:do_sys_openat2
      - {{to: "tracepoint:syscalls:sys_exit_openat", fetch: {{return: ret}}}}
    filter: "return < 0 && common_pid == {tid}"
    metrics:
      - counter: open_errors_total
        help: Failed opens.
        labels: {{errno: {{field: return, decode: errno}}, tid: tid}}
      - counter: opens_total
""")
    opens_of_a_missing_file()
    metrics = agent.scrape()
    assert metrics.value("kprobe_return_errors_total", probe="open", errno="ENOENT") == TIMES
    assert metrics.value("kprobe_open_errors_total", errno="ENOENT", tid=str(tid)) == TIMES
    assert metrics.value("kprobe_opens_total") == TIMES
    assert metrics.value("kprobe_exporter_events_total", probe="open") == TIMES
    assert metrics.labels("kprobe_return_errors_total") == [{"probe": "open", "errno": "ENOENT"}]
    assert metrics.value("kprobe_up", probe="open") == 1


@pytest.mark.needs("kprobe_events")
def test_hits_and_misses_of_a_kprobe(start_agent: StartAgent) -> None:
    agent = start_agent("""
probes:
  - name: getppid
    attach: "kprobe:sys_getppid"
""")
    getppid()
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="getppid") == TIMES)
    metrics = agent.scrape()
    assert metrics.value("kprobe_misses_total", probe="getppid") == 0
    assert metrics.value("kprobe_exporter_events_total", probe="getppid") == 0  # counted, not recorded
    assert [labels["plan"] for labels in metrics.labels("kprobe_info")] == ["count"]
    assert ("kprobe_misses_total", frozenset({("probe", "getppid")})) in metrics


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("target", ["kprobe:sys_getppid", "tracepoint:syscalls:sys_enter_getppid"])
def test_what_is_only_counted_writes_no_event(
    start_agent: StartAgent, entries: Callable[[], list[int]], target: str
) -> None:
    agent = start_agent(f"probes: [{{name: getppid, attach: {target}}}]")
    before = entries()
    hits = agent.scrape().value("kprobe_hits_total", probe="getppid")
    getppid()
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="getppid") == hits + TIMES)
    assert entries() == before


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("returns", ["returns: int", "help: Its type is that of BTF"])
def test_errors_of_a_function_that_returns_int(start_agent: StartAgent, returns: str) -> None:
    agent = start_agent(f"""
probes:
  - name: fsync
    attach: kretprobe:{of_fsync()}
    {returns}
    filter: "common_pid == {kernel_tid()}"
    metrics:
      - counter: fsyncs_total
        labels: {{errno: {{field: return, decode: errno}}}}
""")
    fsyncs_of_a_pipe()
    metrics = agent.scrape()
    assert metrics.value("kprobe_return_errors_total", probe="fsync", errno="EINVAL") == TIMES
    assert metrics.value("kprobe_fsyncs_total", errno="EINVAL") == TIMES
    assert metrics.value("kprobe_return_value_count", probe="fsync") == 0


def reads_of_known_sizes() -> None:
    for path, sizes in (("/dev/zero", (100, 101, 150, 5000)), ("/dev/null", (10,))):
        device = os.open(path, os.O_RDONLY)
        for size in sizes:
            os.read(device, size)
        os.close(device)


@pytest.mark.needs("kprobe_events")
def test_return_values_fall_into_their_buckets(start_agent: StartAgent) -> None:
    with ThreadPoolExecutor(1) as other:  # a thread that reads only what the test submits
        agent = start_agent(f"""
probes:
  - name: read
    attach: kretprobe:vfs_read
    returns: ssize_t
    filter: "common_pid == {other.submit(kernel_tid).result()}"
    return_buckets: [0, 100, 1000]
    metrics:
      - counter: read_bytes_total
        value: return
      - histogram: read_size_bytes
        value: return
        buckets: {{linear: {{start: 100, width: 100, count: 3}}}}
      - gauge: last_read_bytes
        value: return
""")
        other.submit(reads_of_known_sizes).result()
    metrics = agent.scrape()
    buckets = [
        metrics.value("kprobe_return_value_bucket", probe="read", le=bound)
        for bound in ("0.0", "100.0", "1000.0", "+Inf")
    ]
    assert buckets == [1, 2, 4, 5]
    assert metrics.value("kprobe_read_bytes_total") == 5351
    assert metrics.value("kprobe_read_size_bytes_sum") == 5351
    assert metrics.value("kprobe_read_size_bytes_bucket", le="200.0") == 4
    assert metrics.value("kprobe_last_read_bytes") == 0


@pytest.mark.needs("kprobe_events")
def test_the_agent_does_not_feed_itself(start_agent: StartAgent) -> None:
    agent = start_agent("probes: [{name: read, attach: 'kretprobe:vfs_read', returns: ssize_t}]")
    before = agent.scrape().value("kprobe_exporter_events_total", probe="read")
    time.sleep(3)
    after = agent.scrape().value("kprobe_exporter_events_total", probe="read")
    assert after - before < 100


@pytest.mark.needs("initial_pid_namespace")
def test_names_and_fields_of_a_tracepoint(start_agent: StartAgent) -> None:
    """Numbers and strings come from an eprobe, or from the tracepoint itself if there are no eprobes."""
    agent = start_agent("""
probes:
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    fetch: {file: filename, child: pid}
    metrics:
      - counter: execs_total
        labels: {file: file, child: child}
""")
    child = subprocess.Popen(["true"])
    child.wait()
    (labels,) = [
        labels for labels in agent.scrape().labels("kprobe_execs_total") if labels["child"] == str(child.pid)
    ]
    assert labels["file"].endswith("/true")
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="exec") >= 1)


def test_the_names_of_programs_that_end_at_once(start_agent: StartAgent, tmp_path: Path) -> None:
    """The names come from the events: the programs have ended when these are read."""
    program = tmp_path / "a-name-of-more-than-15"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    agent = start_agent("""
probes:
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    metrics: [{counter: execs_total, labels: [comm]}]
  - name: exit
    attach: tracepoint:sched:sched_process_exit
    metrics: [{counter: exits_total, labels: [comm]}]
""")
    for _ in range(TIMES):
        subprocess.run([program], check=True)
    name = program.name[:15]
    eventually(lambda: agent.scrape().total("kprobe_exits_total", comm=name) == TIMES)
    metrics = agent.scrape()
    assert metrics.total("kprobe_execs_total", comm=name) == TIMES
    shown = metrics.labels("kprobe_execs_total") + metrics.labels("kprobe_exits_total")
    assert "unknown" not in {labels["comm"] for labels in shown}


@pytest.mark.needs("kprobe_events")
def test_a_tracepoints_filter_does_not_narrow_its_hits(start_agent: StartAgent) -> None:
    tid = kernel_tid()
    agent = start_agent(f"""
probes:
  - name: failed
    attach: tracepoint:syscalls:sys_exit_getppid
    fetch: {{return: ret}}
    filter: "return < 0 && common_pid == {tid}"
  - name: all
    attach: tracepoint:syscalls:sys_exit_getppid
    fetch: {{return: ret}}
  - name: only_counted
    attach: tracepoint:syscalls:sys_exit_getppid
""")
    getppid()
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="failed") == TIMES)
    metrics = agent.scrape()
    assert metrics.value("kprobe_hits_total", probe="all") == TIMES
    assert metrics.value("kprobe_hits_total", probe="only_counted") == TIMES
    # Without hist triggers hits are counted of events.
    recorded = 0 if has(HIST) else TIMES
    assert metrics.value("kprobe_exporter_events_total", probe="only_counted") == recorded
    assert metrics.value("kprobe_exporter_events_total", probe="failed") == 0
    assert metrics.value("kprobe_exporter_events_total", probe="all") == TIMES


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize(("source", "torn"), [("binary", "a\\nb-1 [000] d"), ("text", "unknown")])
def test_the_name_recorded_is_the_one_at_the_event(start_agent: StartAgent, source: str, torn: str) -> None:
    """A thread that renames itself afterwards changes the prefix of the text, but not the label."""
    tid = kernel_tid()
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: open
    attach: kretprobe:do_sys_openat2
    filter: "return < 0 && common_pid == {tid}"
    metrics: [{{counter: open_errors_total, labels: [comm]}}]
""")
    comm = "/proc/thread-self/comm"
    with open(comm) as file:
        own = file.read().removesuffix("\n")
    names = [b"before", b'" ret=-1 x="', b"a\nb-1 [000] d", b"\xff\xfe"]
    shown = ["before", '" ret=-1 x="', torn, "\\xff\\xfe"]  # a newline splits its line of text
    try:
        for name in names:
            with open(comm, "wb") as file:
                file.write(name)
            opens_of_a_missing_file()
    finally:
        with open(comm, "w") as file:
            file.write(own)
    metrics = agent.scrape()
    for text in shown:
        assert metrics.value("kprobe_open_errors_total", comm=text) == TIMES
    assert metrics.value("kprobe_exporter_events_total", probe="open") == 4 * TIMES
    unparsed = metrics.value("kprobe_exporter_events_lost_total", reason="unparsed")
    assert unparsed >= TIMES if source == "text" else unparsed == 0


@pytest.mark.needs("kprobe_events")
def test_what_the_buffer_cannot_hold_is_counted(start_agent: StartAgent) -> None:
    """Over a flood, hits are exactly the sum of delivered and lost events."""
    agent = start_agent("""
global: {buffer_size: 4KiB}
probes:
  - name: getppid
    attach: "kprobe:sys_getppid"
    metrics: [{counter: calls_total}]
""")
    agent.signal(signal.SIGSTOP)  # with pages of 16 KiB it may be as fast as the flood
    getppid(20_011)
    agent.signal(signal.SIGCONT)
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="getppid") == 20_011)

    def told_whole() -> bool:
        metrics = agent.scrape()
        delivered = metrics.value("kprobe_exporter_events_total", probe="getppid")
        lost = sum(
            metrics.value("kprobe_exporter_events_lost_total", reason=reason)
            for reason in ("overrun", "commit_overrun", "dropped", "unparsed")
        )
        return delivered + lost == 20_011

    eventually(told_whole)
    assert agent.scrape().value("kprobe_exporter_events_lost_total", reason="overrun") > 0
