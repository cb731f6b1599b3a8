"""The panels of the time of threads and of profiles have an answer from a real Prometheus."""

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from grafana import profiles, time_of_threads
from grafana.__main__ import DIRECTORY
from tests.kernel.conftest import StartAgent
from tests.support.dashboard_schema import asked, panels
from tests.support.patience import eventually
from tests.support.prometheus_server import Prometheus, prometheus, scraping

ROOT = Path(__file__).parents[2]
PACK = ROOT / "examples/packs/scheduler.yaml"
SECONDS = 900
"""Of a range query: all since the start of the server."""

LOAD = """
import socket, threading, time
ends = socket.socketpair()
threading.Thread(target=lambda: ends[1].recv(1), daemon=True).start()
until = time.monotonic() + 600
while time.monotonic() < until:
    time.sleep(0.01)
    sum(range(20_000))
"""
"""A program that runs, sleeps, and waits for a socket and a lock."""


def configurations() -> dict[str, str]:
    """Return the example, and a probe of the pack whose stacks are of the same tracepoint."""
    [off_cpu] = re.findall(r"(?m)^  - name: off_cpu\n(?:    .*\n|\n)+", PACK.read_text())
    example = (ROOT / "examples/time.yaml").read_text().replace("limit: {cpu: 3%}", "limit: none")
    probe = f"probes:\n{off_cpu.replace('enabled: false', 'enabled: true').rstrip()}\n    limit: none\n"
    return {time_of_threads.UID: example, profiles.UID: probe}


def queries(uid: str) -> dict[str, str]:
    """Return the queries to Prometheus of a dashboard, by the panels' titles and their letters."""
    dashboard = json.loads((DIRECTORY / f"{uid}.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": asked(target["expr"], interval="10s")
        for panel in panels(dashboard)
        # A machine may wait for no disk and no memory.
        if panel["datasource"]["type"] == "prometheus" and "has waited so" not in panel["description"]
        for target in panel["targets"]
    }


def unanswered(server: Prometheus, wanted: dict[str, str]) -> list[str]:
    """Return the titles of the panels whose queries have found nothing until now."""
    return [
        title
        for title, expr in wanted.items()
        if not any(series.finite for series in server.over(expr, SECONDS))
    ]


@pytest.mark.parametrize("uid", [time_of_threads.UID, profiles.UID])
def test_each_query_is_answered(start_agent: StartAgent, promtool: str, tmp_path: Path, uid: str) -> None:
    agent = start_agent(configurations()[uid])
    wanted = queries(uid)
    assert len(wanted) > 3
    binary = Path(promtool).with_name("prometheus")
    with subprocess.Popen([sys.executable, "-c", LOAD]) as load:
        try:
            with prometheus(binary, tmp_path, scraping(agent.address)) as server:
                with suppress(AssertionError):
                    eventually(lambda: not unanswered(server, wanted), 30, 1)
                assert unanswered(server, wanted) == []
        finally:
            load.kill()
