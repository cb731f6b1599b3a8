"""From real probes to receivers of others' make: each event once, with its thread, time and trace."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent_process import AgentProcess, Metrics, eventually
from tests.kernel.conftest import StartAgent
from tests.kernel.test_counts import TIMES, fsyncs_of_a_pipe, opens_of_a_missing_file
from tests.receivers import MockServer, attributes, mock_server, needs_mock_server, rotel

pytestmark = pytest.mark.needs("kprobe_events")
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
    attach: call:vfs_fsync_range
    fetch: {{datasync: datasync, file: file}}
    filter: "common_pid == {tid}"
    export: span
"""


@pytest.fixture(scope="module")
def elastic() -> Iterator[MockServer]:
    needs_mock_server()
    with mock_server() as server:
        yield server


def provoked(agent: AgentProcess) -> tuple[int, int, Metrics]:
    """23 failing opens, between two readings of the wall's clock, and 23 fsyncs; and all of it delivered."""
    before = time.time_ns()
    opens_of_a_missing_file()
    after = time.time_ns()
    fsyncs_of_a_pipe()

    def delivered() -> bool:
        metrics = agent.scrape()
        sent = [
            metrics.value("kprobe_exporter_otlp_exported_total", signal=signal)
            for signal in ("logs", "traces")
        ]
        return sent == [TIMES, 2 * TIMES]

    eventually(delivered, 60)
    return before, after, agent.scrape()


def start(start_agent: StartAgent, endpoint: str, protocol: str) -> AgentProcess:
    return start_agent(CONFIG.format(endpoint=endpoint, protocol=protocol, tid=threading.get_native_id()))


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
        assert number(told["thread.id"]) == threading.get_native_id()
        assert number(told["process.pid"]) == os.getpid()
        assert told["thread.name"] == Path("/proc/self/comm").read_text().strip()
    by_id = {span["spanId"]: span for span in found}
    outer = [span for span in found if not span.get("parentSpanId")]
    inner = [span for span in found if span.get("parentSpanId")]
    assert {span["name"] for span in outer} == {"fsync"}
    assert {span["name"] for span in inner} == {"vfs_fsync_range"}
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
    for what in ("dropped", "failed"):
        for signal in ("logs", "traces"):
            assert metrics.value(f"kprobe_exporter_otlp_{what}_total", signal=signal) == 0


@BOTH
def test_rotel(start_agent: StartAgent, tmp_path: Path, protocol: str) -> None:
    with rotel(tmp_path) as server:
        agent = start(start_agent, server.endpoints[protocol], protocol)
        before, after, _ = provoked(agent)
        eventually(lambda: len(server.found(r"Name +: (fsync|vfs_fsync_range)")) >= 2 * TIMES)
        eventually(lambda: len(server.found(r"EventName: (kprobe.hit)")) >= TIMES)
        assert len(server.found(r"-> error.type: Str\((ENOENT)\)")) == TIMES
        assert server.found(r"Name +: (fsync|vfs_fsync_range)").count("fsync") == TIMES
        assert all(before <= int(at) <= after for at in server.found(r"Timestamp: (\d+)"))
        assert set(server.found(r"-> thread.id: Int\((\d+)\)")) == {str(threading.get_native_id())}
