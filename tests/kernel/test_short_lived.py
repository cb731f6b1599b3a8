"""Programs that end within milliseconds are counted by their names, on kernels without eprobes too."""

import subprocess
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.compiling import compiled
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("events/syscalls")

RUNS, CALLS, RENAMED = 3, 17, 5
PROGRAM = f"""
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {{
    for (int i = 0; i < {CALLS}; i++) syscall(SYS_getppid);
    prctl(PR_SET_NAME, "renamed");
    for (int i = 0; i < {RENAMED}; i++) syscall(SYS_getppid);
    return 0;
}}
"""
ENTER = "tracepoint:syscalls:sys_enter_getppid"
ALONE = f"""
probes:
  - {{name: entries, attach: "{ENTER}", filter: 'comm == "sysw"', metrics: [{{counter: entries_total}}]}}
"""
BESIDE = f"""{ALONE}
  - name: calls
    attach: "syscall:getppid"
    metrics: [{{counter: calls_total, where: 'comm == "sysw"'}}, {{counter: names_total, labels: [comm]}}]
  - {{name: filtered, attach: "syscall:getppid", filter: 'comm == "renamed"'}}
  - name: threads
    attach: "{ENTER}"
    filter: 'comm != "sysw"'
    metrics: [{{counter: others_total, labels: [comm, tid]}}]
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("short_lived") / "sysw", PROGRAM)


def run(program: Path) -> None:
    for _ in range(RUNS):
        subprocess.run([program], check=True)


@pytest.mark.parametrize("config", [ALONE, BESIDE], ids=["alone", "beside others"])
def test_filter_by_name(start_agent: StartAgent, program: Path, config: str) -> None:
    agent = start_agent(config)
    run(program)
    eventually(lambda: counted(agent, "kprobe_entries_total") == RUNS * CALLS)
    hits = agent.scrape().value("kprobe_hits_total", probe="entries")
    assert hits >= RUNS * (CALLS + RENAMED)


def test_names_of_calls(start_agent: StartAgent, program: Path) -> None:
    agent = start_agent(BESIDE)
    run(program)
    eventually(lambda: counted(agent, "kprobe_names_total", comm="renamed") == RUNS * RENAMED)
    assert counted(agent, "kprobe_names_total", comm="sysw") == RUNS * CALLS
    assert counted(agent, "kprobe_calls_total") == RUNS * CALLS
    assert counted(agent, "kprobe_others_total", comm="sysw") == 0
    assert counted(agent, "kprobe_others_total", comm="renamed") == RUNS * RENAMED
    assert agent.scrape().value("kprobe_exporter_events_total", probe="filtered") == RUNS * RENAMED


def counted(agent: AgentProcess, name: str, **labels: str) -> float:
    return agent.scrape().total(name, **labels)
