"""From a kernel function call to an exemplar in a real Prometheus: a receiver has the same trace."""

import json
import os
from pathlib import Path

import pytest

from kprobe_exporter.cli import main
from tests.kernel.workload import Child, children
from tests.support.agent_process import AgentProcess, running
from tests.support.patience import eventually
from tests.support.prometheus_server import prometheus
from tests.support.receivers import Rotel, rotel

CALLS = 5
BUCKETS = 'kprobe_duration_seconds_bucket{probe="seek"}'
SCRAPE = {"scrape_interval": "1s", "scrape_timeout": "1s"}


def seeks() -> None:
    """Call lseek a few times."""
    zero = os.open("/dev/zero", os.O_RDONLY)
    for _ in range(CALLS):
        os.lseek(zero, 0, os.SEEK_SET)


def configuration(endpoint: str, thread: Child) -> str:
    """Calls are paired from two tracepoints, which every kernel has, so that no kprobe is needed."""
    probe = {
        "name": "seek",
        "attach": "syscall:lseek",
        "filter": f"common_pid == {thread.tid}",
        "export": "span",
    }
    settings = {"tracefs_instance": "otlp_exemplars"}
    return json.dumps({"global": settings, "otlp": {"endpoint": endpoint}, "probes": [probe]})


def spans(receiver: Rotel) -> dict[tuple[str, str], tuple[int, int]]:
    """The start and end of each received span, by trace id and span id."""
    # Spans that the receiver has not written completely are left out.
    ids = zip(receiver.found(r"Trace ID +: (\w+)"), receiver.found(r"ID +: (\w+)"), strict=False)
    ends = zip(receiver.found(r"Start time: (\d+)"), receiver.found(r"End time: (\d+)"), strict=False)
    return {both: (int(start), int(end)) for both, (start, end) in zip(ids, ends, strict=False)}


def test_an_exemplar_is_a_span_that_was_exported(promtool: str, tmp_path: Path) -> None:
    with children([seeks]) as (thread,), rotel(tmp_path) as receiver:
        file = tmp_path / "config.yaml"
        file.write_text(configuration(receiver.endpoints["http/protobuf"], thread))
        file.chmod(0o600)
        arguments = ["run", "--web.listen-address", "127.0.0.1:0", "--config", str(file)]
        with running(AgentProcess(tmp_path / "agent.log", main, arguments)) as agent:
            agent.wait_until_serving()
            target = {"targets": [agent.address.removeprefix("http://")]}
            jobs = {"global": SCRAPE, "scrape_configs": [{"job_name": "kernel", "static_configs": [target]}]}
            binary = Path(promtool).with_name("prometheus")
            with prometheus(binary, tmp_path, jobs, "--enable-feature=exemplar-storage") as server:
                thread.work()
                eventually(lambda: len(spans(receiver)) == CALLS)
                eventually(lambda: server.exemplars(BUCKETS, 60), 30)
                found, there = server.exemplars(BUCKETS, 60), spans(receiver)
    for exemplar in found:
        ids = exemplar["labels"]["trace_id"], exemplar["labels"]["span_id"]
        start, end = there[ids]
        assert float(exemplar["value"]) == pytest.approx((end - start) / 1e9)
        assert exemplar["timestamp"] == pytest.approx(end / 1e9, abs=0.01)
