"""A real Prometheus scrapes native histograms, and its quantiles are those of the values that were made."""

import errno
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from grafana.queries import spread
from kprobe_exporter.cli import main
from tests.kernel.workload import Child, children
from tests.support.agent_process import AgentProcess, running
from tests.support.patience import eventually
from tests.support.prometheus_server import Prometheus, prometheus
from tests.vm import ROOT

ASKED = [*[-1] * 10, *[0] * 10, *(7**power // 5**power for power in range(1, 81))]
RESULTS = [-errno.EINVAL if offset < 0 else offset for offset in ASKED]
NATIVE, CLASSIC = "kprobe_offsets", "kprobe_classic_offsets"
SCHEMA_ERROR = 2 ** (1 / 8)
"""A bucket of schema 3 ends by this factor above its beginning."""


def seeks() -> None:
    """Seek to each of the offsets, of which the negative ones are refused."""
    file = os.memfd_create("seeks")
    for offset in ASKED:
        with suppress(OSError):
            os.lseek(file, offset, os.SEEK_SET)


def configuration(thread: Child, later: Child) -> str:
    """A tracepoint needs no kprobe, so that every kernel has it."""
    probe = {
        "name": "seek",
        "attach": "tracepoint:syscalls:sys_exit_lseek",
        "fetch": {"result": "ret"},
        "filter": f"common_pid == {thread.tid}",
        "metrics": [
            {"histogram": "offsets", "value": "result"},
            {"histogram": "classic_offsets", "value": "result", "native": False},
        ],
    }
    call = {"name": "call", "attach": "syscall:lseek", "filter": f"common_pid == {later.tid}"}
    settings = {"tracefs_instance": "native_histograms", "native_histograms": True}
    return json.dumps({"global": settings, "probes": [probe, call]})


def shipped_rule(name: str) -> str:
    """The expression of a recording rule that we ship."""
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())["groups"]
    [expression] = [rule["expr"] for group in groups for rule in group["rules"] if rule.get("record") == name]
    return str(expression)


def selected(query: str) -> str:
    """A query of a dashboard for all that there is, over a minute."""
    return query.replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", "1m")


def one(server: Prometheus, query: str) -> float:
    """The value of a query, 0 if there is none yet."""
    return sum(series.samples[0][1] for series in server.now(query))


def test_quantiles_of_known_values(promtool: str, tmp_path: Path) -> None:
    with children([seeks, seeks]) as (thread, later):
        file = tmp_path / "config.yaml"
        file.write_text(configuration(thread, later))
        file.chmod(0o600)
        arguments = ["run", "--web.listen-address", "127.0.0.1:0", "--config", str(file)]
        with running(AgentProcess(tmp_path / "agent.log", main, arguments)) as agent:
            agent.wait_until_serving()
            target = {"targets": [agent.address.removeprefix("http://")]}
            scrape = {"scrape_interval": "1s", "scrape_timeout": "1s"}
            jobs = {"global": scrape, "scrape_configs": [{"job_name": "kernel", "static_configs": [target]}]}
            binary = Path(promtool).with_name("prometheus")
            with prometheus(binary, tmp_path, jobs, "--enable-feature=native-histograms") as server:
                thread.work()
                eventually(lambda: one(server, f"histogram_count({NATIVE})") == len(RESULTS), 30)
                assert one(server, f"histogram_sum({NATIVE})") == sum(RESULTS)
                # The classic one is there beside it, and the native one has no classic series.
                assert one(server, f"{CLASSIC}_count") == len(RESULTS)
                assert server.now(f"{NATIVE}_bucket") == []
                for rank, value in enumerate(sorted(RESULTS), 1):
                    quantile = one(server, f"histogram_quantile({(rank - 0.5) / len(RESULTS)}, {NATIVE})")
                    low, high = sorted((value / SCHEMA_ERROR, value * SCHEMA_ERROR))
                    assert low - 1e-9 <= quantile <= high + 1e-9, (rank, value)
                assert one(server, f"histogram_quantile(0.5, {NATIVE})") == pytest.approx(
                    sorted(RESULTS)[49], rel=0.1
                )
                # A rate needs calls between two scrapes.
                later.work()
                rule = shipped_rule("instance_probe:kprobe_duration_seconds:p99_rate5m")
                eventually(lambda: 0 < one(server, rule) < 1, 30)
                shown = spread("kprobe_duration_seconds", 'probe="call"')
                eventually(lambda: one(server, f"histogram_count({selected(shown)})") > 0, 30)
