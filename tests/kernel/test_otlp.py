"""Third-party receivers get each event of real probes once, with thread, time, trace, stack and pod."""

import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from signal import SIGHUP
from typing import Any

import pytest

from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.compiling import compiled
from tests.support.containers import PATHS, PROGRAM, UID, container_id, group, write_logs
from tests.support.kernel_ids import kernel_tid
from tests.support.mounts import mounted
from tests.support.otlp_outcomes import exported, outcome
from tests.support.patience import eventually, patience
from tests.support.provoked_calls import TIMES, fsyncs_of_a_pipe, opens_of_a_missing_file
from tests.support.receivers import MockServer, attributes, mock_server, needs_mock_server, rotel
from tests.support.system_calls import entry, function, of_fsync
from tests.vm.kernels import EPROBES

pytestmark = pytest.mark.needs("kprobe_events")
LOST = "kprobe_exporter_probe_events_lost_total"
BOTH = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])

CONFIG = """
otlp: {{endpoint: "{endpoint}", protocol: {protocol}}}
probes:
  - name: open
    attach: kretprobe:do_sys_openat2
    filter: "common_pid == {tid} && return < 0"
    export: log
  - name: sync
    attach: syscall:fsync
    filter: "tid == {tid}"
    export: span
  - name: range
    attach: call:{function}
    fetch: {{datasync: datasync, file: "$arg1:x64"}}
    filter: "common_pid == {tid}"
    export: span
"""


CALLS_AS_LOGS = """
otlp: {{endpoint: "{endpoint}"}}
probes:
  - name: sync
    attach: syscall:fsync
    filter: "tid == {tid}"
    export: log
"""

CHOSEN = """
otlp: {{endpoint: "{endpoint}"}}
probes:
  - name: sync
    attach: syscall:fsync
    fetch: {{fd: fd}}
    filter: "tid == {tid}"
    export: {{as: log, where: fd == {fd}}}
  - name: seek
    attach: tracepoint:syscalls:sys_enter_lseek
    fetch: {{whence: whence}}
    filter: "tid == {tid} && fd == {fd}"
    export: {{as: log, where: whence == 2}}
  - name: between
    attach:
      pair:
        from: {{to: "tracepoint:syscalls:sys_enter_lseek", fetch: {{fd: fd}}}}
        to: {{to: "tracepoint:syscalls:sys_enter_fsync", fetch: {{fd: fd}}}}
        key: fd
    filter: "tid == {tid}"
    export: {{as: span, where: fd == {fd}}}
"""

WITH_PATTERN = """
  - name: opened
    attach: kprobe:do_sys_openat2
    fetch: {{name: "+u0($arg2):ustring"}}
    filter: "common_pid == {tid}"
    export: {{as: log, where: name ~ "/etc/*"}}
"""

STACKS = """
otlp: {{endpoint: "{endpoint}"}}
probes:
  - name: range
    attach: {attach}
    stack: true
    filter: "common_pid == {tid}"
    export: {signal}
"""

PODS = """
otlp: {{endpoint: "{endpoint}"}}
probes:
  - name: open
    attach: kprobe:do_sys_openat2
    filter: 'comm == "short"'
    export: log
"""


@pytest.fixture(scope="module")
def elastic() -> Iterator[MockServer]:
    needs_mock_server()
    with mock_server() as server:
        yield server


def patient(config: str) -> str:
    """Give a collector in a busy guest the time to answer: a batch that is sent again may arrive twice."""
    return config.replace("otlp: {", f"otlp: {{timeout: {patience(10):.0f}s, ")


@pytest.fixture
def start_agent(start_agent: StartAgent) -> StartAgent:
    return lambda config: start_agent(patient(config))


def provoked(agent: AgentProcess) -> tuple[int, int, Metrics]:
    """Make 23 failing opens, between two readings of the wall clock, and 23 fsyncs; wait for the export."""
    before = time.time_ns()
    opens_of_a_missing_file()
    after = time.time_ns()
    fsyncs_of_a_pipe()

    return before, after, exported(agent, logs=TIMES, traces=2 * TIMES)


def start(start_agent: StartAgent, endpoint: str, protocol: str) -> AgentProcess:
    place = {"endpoint": endpoint, "protocol": protocol, "function": of_fsync()}
    return start_agent(CONFIG.format(tid=kernel_tid(), **place))


def number(value: Any) -> int:
    return int(value)


@BOTH
def test_elastic(start_agent: StartAgent, elastic: MockServer, protocol: str) -> None:
    logs, spans = len(elastic.log_records()), len(elastic.spans())
    agent = start(start_agent, elastic.endpoints[protocol], protocol)
    before, after, metrics = provoked(agent)
    eventually(lambda: len(elastic.log_records()) >= logs + TIMES)
    eventually(lambda: len(elastic.spans()) >= spans + 2 * TIMES)
    records, found = elastic.log_records()[logs:], elastic.spans()[spans:]
    assert (len(records), len(found)) == (TIMES, 2 * TIMES)
    for record in records:
        told = attributes(record)
        assert before <= number(record["timeUnixNano"]) <= after
        assert told["kprobe.name"] == "open"
        assert told["code.function.name"] == "do_sys_openat2"
        assert told["error.type"] == "ENOENT"
        assert number(told["kprobe.return_value"]) == -2
        assert number(told["thread.id"]) == kernel_tid()
        assert number(told["process.pid"]) == os.getpid()
        assert told["thread.name"] == Path("/proc/self/comm").read_text().strip()
    by_id = {span["spanId"]: span for span in found}
    outer = [span for span in found if not span.get("parentSpanId")]
    inner = [span for span in found if span.get("parentSpanId")]
    assert {span["name"] for span in outer} == {"fsync"}
    assert {span["name"] for span in inner} == {of_fsync()}
    assert (len(outer), len(inner), len({span["traceId"] for span in outer})) == (TIMES, TIMES, TIMES)
    for span in inner:
        parent = by_id[span["parentSpanId"]]
        assert span["traceId"] == parent["traceId"]
        assert number(parent["startTimeUnixNano"]) <= number(span["startTimeUnixNano"])
        assert number(span["endTimeUnixNano"]) <= number(parent["endTimeUnixNano"])
        assert number(attributes(span)["kprobe.arg.datasync"]) == 0
        assert "kprobe.arg.file" not in attributes(span)  # a pointer
    for name, ours in (("sync", outer), ("range", inner)):
        took = [number(span["endTimeUnixNano"]) - number(span["startTimeUnixNano"]) for span in ours]
        total = metrics.value("kprobe_duration_seconds_sum", probe=name)
        assert sum(took) / 1e9 == pytest.approx(total, rel=1e-6)
        assert metrics.value("kprobe_duration_seconds_count", probe=name) == TIMES
    assert outcome(metrics, "logs") == (TIMES, 0, 0)
    assert outcome(metrics, "traces") == (2 * TIMES, 0, 0)


@BOTH
def test_rotel(start_agent: StartAgent, tmp_path: Path, protocol: str) -> None:
    with rotel(tmp_path) as server:
        agent = start(start_agent, server.endpoints[protocol], protocol)
        before, after, _ = provoked(agent)
        eventually(lambda: len(server.found(rf"Name +: (fsync|{of_fsync()})")) >= 2 * TIMES)
        eventually(lambda: len(server.found(r"EventName: (kprobe.hit)")) >= TIMES)
        assert len(server.found(r"-> error.type: Str\((ENOENT)\)")) == TIMES
        assert server.found(rf"Name +: (fsync|{of_fsync()})").count("fsync") == TIMES
        assert all(before <= int(at) <= after for at in server.found(r"Timestamp: (\d+)"))
        assert set(server.found(r"-> thread.id: Int\((\d+)\)")) == {str(kernel_tid())}


def test_calls_as_log_records(start_agent: StartAgent, elastic: MockServer) -> None:
    """Each has its duration, and the time at which it ended."""
    logs = len(elastic.log_records())
    agent = start_agent(CALLS_AS_LOGS.format(endpoint=elastic.endpoints["http/protobuf"], tid=kernel_tid()))
    before = time.time_ns()
    fsyncs_of_a_pipe()
    after = time.time_ns()
    metrics = exported(agent, logs=TIMES)
    eventually(lambda: len(elastic.log_records()) >= logs + TIMES)
    records = elastic.log_records()[logs:]
    assert len(records) == TIMES
    for record in records:
        told = attributes(record)
        assert before <= number(record["timeUnixNano"]) <= after
        assert (told["kprobe.name"], told["error.type"]) == ("sync", "EINVAL")
    durations = [float(attributes(record)["kprobe.duration"]) for record in records]
    assert sum(durations) == pytest.approx(
        metrics.value("kprobe_duration_seconds_sum", probe="sync"), rel=1e-6
    )
    assert metrics.value("kprobe_duration_seconds_count", probe="sync") == TIMES


def test_only_what_is_chosen_is_exported_and_all_is_counted(
    start_agent: StartAgent, elastic: MockServer
) -> None:
    logs, spans = len(elastic.log_records()), len(elastic.spans())
    one, other = pipe = os.pipe()
    agent = start_agent(CHOSEN.format(endpoint=elastic.endpoints["http/protobuf"], tid=kernel_tid(), fd=one))
    for fd in pipe * TIMES:
        for whence in (os.SEEK_SET, os.SEEK_END) if fd == one else (os.SEEK_CUR,):
            with suppress(OSError):
                os.lseek(fd, 0, whence)
        with suppress(OSError):
            os.fsync(fd)
    metrics = exported(agent, logs=2 * TIMES, traces=TIMES)
    eventually(lambda: len(elastic.log_records()) >= logs + 2 * TIMES)
    eventually(lambda: len(elastic.spans()) >= spans + TIMES)
    records = [attributes(record) for record in elastic.log_records()[logs:]]
    found = Counter((told["kprobe.name"], number(told["thread.id"])) for told in records)
    assert found == {("sync", kernel_tid()): TIMES, ("seek", kernel_tid()): TIMES}
    assert {number(told["kprobe.arg.fd"]) for told in records if told["kprobe.name"] == "sync"} == {one}
    assert all(float(told["kprobe.duration"]) > 0 for told in records if told["kprobe.name"] == "sync")
    pairs = elastic.spans()[spans:]
    assert [number(attributes(span)["kprobe.arg.fd"]) for span in pairs] == [one] * TIMES
    assert not any(span.get("parentSpanId") for span in pairs)
    assert metrics.value("kprobe_duration_seconds_count", probe="sync") == 2 * TIMES
    assert metrics.value("kprobe_exporter_events_total", probe="seek") == 2 * TIMES
    assert metrics.value("kprobe_duration_seconds_count", probe="between") == 2 * TIMES
    os.close(one)
    os.close(other)


def test_calls_lie_in_each_other_whoever_chooses(
    start_agent: StartAgent, elastic: MockServer, tmp_path: Path
) -> None:
    """With a probe that needs its records, all exported events become records; then none does again."""
    nested = CONFIG.format(
        endpoint=elastic.endpoints["http/protobuf"],
        protocol="http/protobuf",
        function=of_fsync(),
        tid=kernel_tid(),
    )
    agent = start_agent(nested)
    path = tmp_path / "config0.yaml"
    stamp = "kprobe_exporter_config_last_reload_success_timestamp_seconds"

    def reload(text: str) -> None:
        before = agent.scrape().value(stamp)
        path.write_text(patient(text))
        agent.signal(SIGHUP)
        agent.scrape_until(lambda metrics: metrics.value(stamp) > before)

    def traced(times: int) -> list[Any]:
        seen = len(elastic.spans())
        fsyncs_of_a_pipe()
        exported(agent, traces=times * 2 * TIMES)
        eventually(lambda: len(elastic.spans()) >= seen + 2 * TIMES)
        return elastic.spans()[seen:]

    for times, text in enumerate((nested, nested + WITH_PATTERN.format(tid=kernel_tid()), nested), 1):
        reload(text)
        spans = traced(times)
        ids = Counter(span["spanId"] for span in spans if span["name"] == "fsync")
        parents = Counter(span["parentSpanId"] for span in spans if span["name"] == of_fsync())
        assert ids == parents
        assert len(ids) == TIMES
    metrics = agent.scrape()
    for name in ("sync", "range"):
        assert metrics.value("kprobe_duration_seconds_count", probe=name) == 3 * TIMES
        assert metrics[LOST, frozenset({("probe", name), ("reason", "unpaired")})] == 0


@pytest.mark.parametrize(
    ("attach", "signal"), [(f"kprobe:{of_fsync()}", "log"), (f"call:{of_fsync()}", "span")]
)
def test_stacks(start_agent: StartAgent, elastic: MockServer, attach: str, signal: str) -> None:
    """A record or span has the function's callers, innermost first, up to the system call."""
    arrived = elastic.log_records if signal == "log" else elastic.spans
    before = len(arrived())
    endpoint = elastic.endpoints["http/protobuf"]
    agent = start_agent(STACKS.format(endpoint=endpoint, attach=attach, signal=signal, tid=kernel_tid()))
    fsyncs_of_a_pipe()
    # The first stack loads the kernel's symbols, which takes a while under emulation.
    exported(agent, **{"logs" if signal == "log" else "traces": TIMES})
    eventually(lambda: len(arrived()) >= before + TIMES)
    found = arrived()[before:]
    assert len(found) == TIMES
    for one in found:
        told = attributes(one)
        assert told["code.function.name"] == of_fsync()
        functions = [line.split()[0].partition("+")[0] for line in told["code.stacktrace"].splitlines()]
        callers = [name for name in functions if name in (function("fsync"), entry())]
        if signal == "span" and not has(EPROBES):  # docs/collecting.md, on 5.10
            assert functions[-2:] == [of_fsync(), "kretprobe_trampoline"]
        else:
            # On arm64 the function has not saved its caller yet when a kprobe at its entry fires.
            left_out = platform.machine() == "aarch64"
            assert callers == [function("fsync"), entry()][left_out:], functions


@pytest.fixture
def procs(tmp_path: Path) -> Iterator[Path]:
    """The cgroup.procs of a pod's container, for which the kubelet's log directory and link exist."""
    hierarchy, logs = tmp_path / "cgroups", Path("/var/log")
    hierarchy.mkdir()
    with ExitStack() as stack:
        for kind, where in (("cgroup2", hierarchy), ("tmpfs", logs)):
            stack.enter_context(mounted(where, "-t", kind))
        for name in ("pods", "containers"):
            (logs / name).mkdir()
        write_logs(logs, 9, "web-0", "shop")
        directory = group(hierarchy, PATHS["containerd"], 9)
        for path in (*directory.parents[2::-1], directory):  # removed in reverse order
            stack.callback(path.rmdir)
        yield directory / "cgroup.procs"


def test_pods(start_agent: StartAgent, elastic: MockServer, tmp_path: Path, procs: Path) -> None:
    """Records of a pod's processes, which live 5 ms, name the pod; that of a process outside does not."""
    program, before = compiled(tmp_path / "short", PROGRAM, "-static"), len(elastic.log_records())
    agent = start_agent(PODS.format(endpoint=elastic.endpoints["http/protobuf"]))
    subprocess.run([program, procs, str(TIMES)], check=True)
    exported(agent, logs=TIMES + 1)
    eventually(lambda: len(elastic.log_records()) >= before + TIMES + 1)
    ours = {
        "container.id": container_id(9),
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-0",
        "k8s.pod.uid": UID.format(9),
        "k8s.container.name": "app",
    }
    found = [
        {key: value for key, value in attributes(record).items() if key.startswith(("container.", "k8s."))}
        for record in elastic.log_records()[before:]
    ]
    assert sorted(found, key=len) == [{}, *[ours] * TIMES]
