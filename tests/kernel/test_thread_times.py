"""``time`` of the agent: a program's classes are those of its own clock, and all add up to the threads."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

from tests.kernel.conftest import StartAgent
from tests.kernel.tools.time_mix import margin
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.folded import folded

CONFIG = """
global: {{tracefs_instance: times, buffer_size: 4MiB, limit: none, max_series: 5000}}
time: {{by: [{by}], limit: none}}
"""
TOTAL, UNACCOUNTED = "kprobe_time_seconds_total", "kprobe_time_unaccounted_seconds_total"
PROGRAM = "import json; from tests.kernel.tools.time_mix import Mix; print(json.dumps(Mix().measured()))"

MOST_UNKNOWN = 0.25
"""The share of a class that may be unaccounted: see tests/kernel/tools/test_time.py."""


def run_mix(directory: Path) -> tuple[str, dict[str, float]]:
    """Run the mix of tests/kernel/tools/time_mix.py as a program of its own; return its path and facts."""
    program = directory / "mix"
    shutil.copy(Path(sys.executable).resolve(), program)
    paths = {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command, whole_env = [str(program), "-c", PROGRAM], os.environ | paths
    done = subprocess.run(command, env=whole_env, capture_output=True, text=True, check=True, timeout=120)
    facts: dict[str, float] = json.loads(done.stdout)
    return str(program), facts


def number_of_threads() -> int:
    """Return the number of threads of the machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def whole(metrics: Metrics) -> float:
    return metrics.total(TOTAL)


def settled(agent: AgentProcess) -> Metrics:
    """Return a scrape with what has happened until now: the time of all threads is added up once a second."""
    time.sleep(1.5)
    return agent.scrape()


def test_classes_of_a_program(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(CONFIG.format(by="exe"))
    program, facts = run_mix(tmp_path)
    shown = settled(agent)
    found = {name: shown.value(TOTAL, exe=program, **{"class": name}) for name in facts if name in CLASSES}
    unknown = shown.value(TOTAL, exe=program, **{"class": "unaccounted"})
    assert unknown < MOST_UNKNOWN * shown.total(TOTAL, exe=program)
    for name, seconds in found.items():
        measured = facts[name]
        within = margin(measured) + shown.value(TOTAL, exe=program, **{"class": "waiting_for_cpu"})
        assert measured - unknown - within <= seconds <= measured + within, (name, found)
    assert shown.value(UNACCOUNTED) == shown.total(TOTAL, **{"class": "unaccounted"})
    stacks = folded(agent, "time")
    assert any(stack[0] == "pipe" and any("pipe_read" in one for one in stack) for stack in stacks)


CLASSES = ("sleep", "poll", "pipe", "network")
"""Those in which the program is for its phases alone: it starts, and waits for its threads, in others."""


def test_all_classes_add_up_to_the_threads(start_agent: StartAgent) -> None:
    """Also over a reload, which keeps the threads."""
    agent = start_agent(CONFIG.format(by=""), "--web.enable-lifecycle")
    before, begun, threads = whole(settled(agent)), time.monotonic(), [number_of_threads()]
    urlopen(Request(f"{agent.address}/-/reload", method="POST"), timeout=30).close()
    for _ in range(20):
        time.sleep(0.2)
        threads.append(number_of_threads())
    added, passed = whole(agent.scrape()) - before, time.monotonic() - begun
    # At each scrape, the last second of some threads may be missing.
    assert min(threads) > 10
    assert (passed - 1.5) * 0.97 * min(threads) <= added <= (passed + 1.5) * 1.03 * max(threads)
