"""USDT probes of real programs: counts and values are the program's own; semaphores are 0 afterwards."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kprobe_exporter.elf import usdt_probes
from tests.kernel.conftest import READ_EVERY, StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.compiling import compiled
from tests.support.patience import eventually
from tests.support.system_calls import only_x86
from tests.support.usdt_programs import HEADER, semaphore

pytestmark = pytest.mark.needs("uprobe_events")

PYTHON = Path("/usr/bin/python3.11")
PACK = Path(__file__).parents[2] / "examples/packs/python.yaml"
TIMES = 23

COLLECT = """
import gc, json, sys
sys.stdin.readline()
for generation in (0, 1, 2):
    for _ in range(TURNS):
        gc.collect(generation)
class Ring: pass
for _ in range(TURNS):
    ring = Ring(); ring.ring = ring; del ring
    gc.collect(1)
gc.disable()
stats = gc.get_stats()
print(json.dumps([[one["collections"] for one in stats], sum(one["collected"] for one in stats)]))
sys.stdout.flush()
sys.stdin.readline()
""".replace("TURNS", str(TIMES))

PROGRAM = (
    HEADER
    + r"""
#include <stdio.h>
#include <stdlib.h>
SEMAPHORE(app_step_semaphore);
__attribute__((noinline)) void inner(int number, const char *word) {
  if (!app_step_semaphore) return;
  SITE("app", "step", "app_step_semaphore", "-4@%0 8@%1", "nor"(number), "nor"(word));
}
int main(int count, char **words) {
  char line[8];
  puts("ready"); fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    int times = atoi(line), wanted = app_step_semaphore;
    for (int turn = 0; turn < times; turn++) {
      inner(-turn, words[1]);
      SITE("app", "step", "app_step_semaphore", "-4@%0 8@%1", "nor"(1000), "nor"(words[2]));
      SITE("app", "bare", "0", "-4@%0", "nor"(turn));
      SITE("app", "mixed", "0", "-4@%0", "nor"(turn));
      SITE("app", "mixed", "0", "8@%0", "r"((long)turn));
    }
    printf("%d\n", wanted); fflush(stdout);
  }
  return 0;
}
"""
)


@contextmanager
def conversing(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program with pipes to it, and end it."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def ask(child: subprocess.Popen[str], line: str = "") -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A copy of Debian's python, which no other process runs."""
    assert PYTHON.exists(), "Debian's package python3.11-minimal is not installed"
    return Path(shutil.copy(PYTHON, tmp_path / "python"))


def test_collections_are_those_of_gc_get_stats(start_agent: StartAgent, python: Path) -> None:
    """The pack for Python, on the copy, and a probe that is only counted."""
    assert {"gc__start", "gc__done"} <= {one.name for one in usdt_probes(str(python))}
    shipped = PACK.read_text()
    assert "usdt:/usr/bin/python3:" in shipped
    agent = start_agent(f"""{shipped.replace("usdt:/usr/bin/python3:", f"usdt:{python}:")}
  - name: hits
    attach: usdt:{python}:python:gc-start
""")
    with conversing(python, "-S", "-E", "-c", COLLECT) as child:
        eventually(lambda: semaphore(child.pid, python, "python:gc__start") > 0)
        collections, found = json.loads(ask(child))
        assert all(number >= TIMES for number in collections)
        time.sleep(READ_EVERY)  # after which the kernel's counts are read anew
        metrics = agent.scrape()
        labels = {"comm": python.name}
        counted = [
            metrics.value("kprobe_python_gc_seconds_count", generation=str(number), **labels)
            for number in range(3)
        ]
        assert counted == collections
        assert 0 < metrics.total("kprobe_python_gc_seconds_sum", **labels) < 60
        assert metrics.value("kprobe_python_gc_objects_total", **labels) == found
        assert metrics.value("kprobe_hits_total", probe="hits") == sum(collections)
        agent.end()
        assert semaphore(child.pid, python, "python:gc__start") == 0
        assert semaphore(child.pid, python, "python:gc__done") == 0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("usdt") / "program", PROGRAM, "-O2")


def told(agent: AgentProcess, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by the values of its labels, in the labels' order."""
    metrics = agent.scrape()
    return {
        tuple(labels[key] for key in sorted(labels)): metrics.value(name, **labels)
        for labels in metrics.labels(name)
    }


@only_x86
def test_each_place_of_a_probe_counts_with_its_own_values(start_agent: StartAgent, program: Path) -> None:
    agent = start_agent(f"""
probes:
  - name: step
    attach: usdt:{program}:app:step
    fetch: {{number: $arg1, word: "+0($arg2):string"}}
    metrics:
      - {{counter: steps_total, labels: [number, word]}}
  - name: counted
    attach: usdt:{program}:app:step
  - name: filtered
    attach: usdt:{program}:app:step
    fetch: {{number: $arg1}}
    filter: number < -10
    metrics:
      - {{counter: low_total, labels: [number]}}
  - name: mixed
    attach: usdt:{program}:app:mixed
    fetch: {{number: "$arg1:s32"}}
    metrics:
      - {{counter: mixed_total, value: number}}
  - name: every
    attach: usdt:{program}:app:*
""")
    with conversing(program, "one", "two words") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert semaphore(child.pid, program, "app:step") > 0
        assert int(ask(child, str(TIMES))) > 0
        steps = told(agent, "kprobe_steps_total")
        expected = {(str(-turn), "one"): 1.0 for turn in range(TIMES)}
        assert steps == {**expected, ("1000", "two words"): float(TIMES)}
        assert set(told(agent, "kprobe_low_total")) == {(str(-turn),) for turn in range(11, TIMES)}
        metrics = agent.scrape()
        assert metrics.value("kprobe_mixed_total") == 2 * sum(range(TIMES))
        for probe in ("step", "counted", "every_step", "mixed", "every_mixed"):
            assert metrics.value("kprobe_hits_total", probe=probe) == 2 * TIMES, probe
        assert metrics.value("kprobe_hits_total", probe="every_bare") == TIMES
        agent.end()
        assert semaphore(child.pid, program, "app:step") == 0
        assert ask(child, "1") == "0"


@only_x86
def test_an_argument_of_several_types_wants_one_to_be_chosen(start_agent: StartAgent, program: Path) -> None:
    agent = start_agent(f"""
probes:
  - name: mixed
    attach: usdt:{program}:app:mixed
    fetch: {{number: $arg1}}
    optional: true
""")
    assert "$arg1 has the types s32 and u64 at different places" in agent.output()
    assert "choose one, such as $arg1:s32" in agent.output()


@only_x86
def test_a_reload_leaves_the_semaphore_as_the_configuration_wants_it(
    start_agent: StartAgent, program: Path, tmp_path: Path
) -> None:
    on = f"probes:\n  - {{name: step, attach: 'usdt:{program}:app:step', enabled: true}}\n"
    agent = start_agent(on)
    with conversing(program, "a", "b") as child:
        assert child.stdout is not None
        child.stdout.readline()
        [config] = tmp_path.glob("config*.yaml")
        for enabled in (False, True, False):
            config.write_text(on.replace("true", str(enabled).lower()))
            agent.signal(signal.SIGHUP)
            eventually(partial(_is_wanted, child, program, enabled))
        agent.end()


def _is_wanted(child: subprocess.Popen[str], program: Path, enabled: bool) -> bool:
    """Whether the semaphore is as it should be. Each place of the probe counts in it."""
    return semaphore(child.pid, program, "app:step") == 2 * enabled
