"""Probed files of the host on a file system that hangs, as NFS without its server."""

import socket
import subprocess
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from kprobe_exporter.agent.agent import STARTING
from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.hanging_mount import hanging
from tests.support.patience import eventually, patience, within

pytestmark = pytest.mark.needs("uprobe_events")

PROGRAM = """
__attribute__((noinline)) int twice(int n) { __asm__(""); return 2 * n; }
int main(int count, char **words) { return twice(0); }
"""
CONFIG = "global: {tracefs_instance: kprobe_exporter_hanging}\n"

DEAD = 24
"""Files on it. An agent that waited for each would start too late."""

START_S, END_S, SCRAPE_S = 10, 5, 1.5
"""Seconds in which an agent starts beside them, in which SIGTERM is obeyed, and a scrape is answered."""


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    made = tmp_path / "mount"
    made.mkdir()
    return made


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return compiled(tmp_path / "program", PROGRAM)


@pytest.fixture
def config(mount: Path, program: Path) -> str:
    dead = (f"{{name: dead{number}, attach: 'uprobe:{mount}/{number}:f'}}" for number in range(DEAD))
    alive = f"{{name: alive, attach: 'uprobe:{program}:twice'}}"
    return f"{CONFIG}probes: [{', '.join([*dead, alive])}]"


def test_start(start_agent: StartAgent, mount: Path, program: Path, config: str) -> None:
    with hanging(mount):
        with within(START_S):
            agent = start_agent(config)
        subprocess.run([program], check=True)
        eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="alive") == 1)
        eventually(lambda: agent.scrape().value("kprobe_exporter_fault", fault="file_hangs") == 1)
        metrics = agent.scrape()
        assert metrics.value("kprobe_up", probe="dead0") == 0
        assert metrics.value("kprobe_exporter_budget_overruns_total", source="path") == DEAD
        with within(END_S):
            assert agent.end() == 0
    assert "Traceback" not in agent.output()


def test_end_of_a_start(start_agent: StartAgent, mount: Path, config: str) -> None:
    """Requests are answered meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def ready() -> str:
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=patience(SCRAPE_S)) as answer:
                return f"{answer.status}"
        except HTTPError as error:
            with error:
                return error.read().decode()
        except URLError:
            return "no answer"

    with hanging(mount):
        agent = start_agent(config, "--web.listen-address", address, serving=False)
        eventually(lambda: ready() == f"{STARTING}\n", START_S / 2, 0.1)
        with within(END_S):
            assert agent.end() == 0
    assert "Traceback" not in agent.output()
