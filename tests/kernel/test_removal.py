"""Many uprobes: a stop tells how far it is, a second signal leaves the rest, and a reload goes on serving."""

import ctypes
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.agent import agent as agent_module
from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.removal import Removal
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.compiling import compiled
from tests.support.leftovers import definitions, instances, unchanged
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("uprobe_events")

MANY = 200
SOURCE = "".join(
    f'__attribute__((noinline)) long {name}(long n) {{ __asm__(""); return n + {number}; }}\n'
    for number, name in enumerate(["stays", *(f"goes_{number:03}" for number in range(MANY))])
)
STAYS = """
probes:
  - name: stays
    help: Calls
    attach: uprobe:{0}:stays
    filter: common_pid > 0
    metrics: [{{counter: stays_total, help: Calls., labels: [comm]}}]
"""
FEW = 10


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("library") / "many.so", SOURCE, "-shared", "-fPIC")


def config(library: Path, going: int) -> str:
    names = [f"goes_{number:03}" for number in range(going)]
    goes = [f'  - {{name: {name}, help: Calls, attach: "uprobe:{library}:{name}"}}\n' for name in names]
    return STAYS.format(library) + "".join(goes)


def end_at_once(agent: AgentProcess) -> None:
    """Send two signals, which differ, since the kernel would deliver equal ones as one."""
    agent.signal(signal.SIGTERM)
    agent.signal(signal.SIGINT)
    assert agent.wait() == 0


def test_a_stop_tells_how_far_it_is(
    start_agent: StartAgent, tracefs: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The agent is forked, so it inherits the patch. By default it tells every 5 s.
    monkeypatch.setattr(agent_module, "Removal", partial(Removal, pause=0))
    with unchanged(tracefs):
        agent = start_agent(config(library, FEW))
        assert agent.end() == 0
    output = agent.output()
    beginning = (
        "removing 11 events from the kernel; a second signal leaves the rest to 'kprobe-exporter cleanup'"
    )
    for line in (beginning, "removing triggers: 10 of 11", "switching events off: 0 of 11"):
        assert line in output
    assert "deleting definitions: 10 of 11" in output


def test_a_second_signal_leaves_the_rest_to_cleanup(
    start_agent: StartAgent, tracefs: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a removal that takes under a second is finished."""
    monkeypatch.setattr(agent_module, "Removal", partial(Removal, least=0))
    with unchanged(tracefs):
        agent = start_agent(config(library, FEW))
        end_at_once(agent)
        told = [line for line in agent.output().splitlines() if "the removal was stopped" in line]
        assert len(told) == 1
        assert "'kprobe-exporter cleanup' or the next start removes the rest." in told[0]
        assert "kprobe_exporter" in instances(tracefs)
        assert "kprobe_exporter/goes_009 " in definitions(tracefs)
        result = CliRunner().invoke(main, ["cleanup"])
        assert result.exit_code == 0
        removed = "removed instances/kprobe_exporter and 12 definitions of the group 'kprobe_exporter'\n"
        assert result.output == removed


def test_a_next_start_removes_the_rest(
    start_agent: StartAgent, tracefs: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unchanged(tracefs):
        with monkeypatch.context() as patched:
            patched.setattr(agent_module, "Removal", partial(Removal, least=0))
            end_at_once(start_agent(config(library, FEW)))
        again = start_agent(config(library, 0))
        assert (
            "removing what a killed agent left: instances/kprobe_exporter, with 11 events" in again.output()
        )
        assert again.end() == 0


def test_a_reload_that_removes_many_goes_on_serving(
    start_agent: StartAgent, library: Path, tmp_path: Path
) -> None:
    """No scrape waits for it, and no event of the probe that stays is lost."""
    agent = start_agent(config(library, MANY))
    assert agent.scrape().total("kprobe_up") == MANY + 1
    called, ended = 0, threading.Event()
    stays = ctypes.CDLL(str(library)).stays

    def calls() -> None:
        nonlocal called
        while not ended.is_set():
            stays(0)
            called += 1
            time.sleep(0.001)

    caller = threading.Thread(target=calls)
    caller.start()
    waits: list[float] = []
    try:
        (tmp_path / "config0.yaml").write_text(config(library, 0))
        began = time.monotonic()
        agent.signal(signal.SIGHUP)
        while "1 of 1 probes are up" not in agent.output():
            asked = time.monotonic()
            agent.get()
            waits.append(time.monotonic() - asked)
        lasted = time.monotonic() - began
    finally:
        ended.set()
        caller.join()
    eventually(lambda: agent.scrape().total("kprobe_hits_total", probe="stays") == called)
    metrics = agent.scrape()
    assert metrics.total("kprobe_stays_total") == called
    assert metrics.total("kprobe_exporter_events_lost_total") == 0
    print(f"{lasted:.1f} s, {len(waits)} scrapes, the longest {max(waits):.2f} s, {called} calls")
    assert len(waits) > 3
    assert max(waits) < lasted / 2
