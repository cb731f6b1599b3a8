"""Calls of a program that is replaced by rename are all counted, in processes of the old file and the new."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.compiling import compiled
from tests.support.joined_calls import lost
from tests.support.patience import eventually
from tests.vm.kernels import HIST

pytestmark = [pytest.mark.needs("uprobe_events"), pytest.mark.needs(HIST)]

TIMES = 100

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#ifdef MOVED
__attribute__((noinline)) int before(int n) { int a[64] = {n}; __asm__("" :: "r"(a)); return a[n & 63] * 7; }
#endif
#ifndef WITHOUT
__attribute__((noinline)) int twice(int n) { __asm__(""); return 2 * n; }
#else
#define twice(n) (2 * (n))
#endif
/* For each line that it reads, it calls the function as often as that says, and answers with a line. */
int main(void) {
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        for (int times = atoi(line), n = 0; n < times; n++)
            if (twice(n) < 0) return 1;
#ifdef MOVED
        before(1);
#endif
        puts("called");
        fflush(stdout);
    }
    return 0;
}
"""

PROBES = """
probes:
  - name: entry
    attach: "uprobe:{0}:twice"
    fetch: {{n: "$arg1:s32"}}
    metrics: [{{counter: sum_total, value: n}}]
  - name: back
    attach: "uretprobe:{0}:twice"
    returns: int
    metrics: [{{counter: back_total, value: return}}]
  - {{name: whole, attach: "ucall:{0}:twice"}}
  - {{name: counted, attach: "uprobe:{0}:twice"}}
  - name: in_kernel
    attach: "uprobe:{0}:twice"
    aggregate: kernel
    metrics: [{{counter: in_kernel_total}}]
"""

NAMES = ("entry", "back", "whole", "counted", "in_kernel")

SUM = sum(range(TIMES))


class Caller:
    """A process that runs the program and calls its function when told to."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def call(self, times: int = TIMES) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{times}\n")
        assert self.process.stdout.readline() == "called\n"


@contextmanager
def running(program: Path) -> Iterator[Caller]:
    caller = Caller(program)
    with caller.process:
        try:
            yield caller
        finally:
            caller.process.kill()


def replace(program: Path, new: Path) -> None:
    """Replace a program as a package's upgrade does: it never is missing, and its old file still runs."""
    assert new.stat().st_ino != program.stat().st_ino
    new.rename(program)


def built(directory: Path, name: str, *flags: str) -> Path:
    return compiled(directory / name, PROGRAM, *flags)


def counts(metrics: Metrics) -> dict[str, tuple[float, ...]]:
    """Return the hits, the events and the sum or count that each probe has of its calls."""
    found: dict[str, tuple[float, ...]] = {
        name: (
            metrics.value("kprobe_hits_total", probe=name),
            metrics.value("kprobe_exporter_events_total", probe=name),
        )
        for name in NAMES
    }
    found["entry"] += (metrics.value("kprobe_sum_total"),)
    found["back"] += (metrics.value("kprobe_back_total"),)
    found["whole"] += (metrics.value("kprobe_duration_seconds_count", probe="whole"),)
    found["in_kernel"] += (metrics.value("kprobe_in_kernel_total"),)
    return found


def of(rounds: int) -> dict[str, tuple[float, ...]]:
    """Return the counts after this many rounds of calls."""
    times = rounds * TIMES
    return {
        "entry": (times, times, rounds * SUM),
        "back": (times, times, rounds * 2 * SUM),
        "whole": (times, times, times),
        "counted": (times, 0),
        "in_kernel": (times, times, times),
    }


def counted(agent: AgentProcess, rounds: int) -> Callable[[], bool]:
    def look() -> bool:
        return counts(agent.scrape()) == of(rounds)

    return look


def check(agent: AgentProcess, rounds: int) -> None:
    """Wait for these counts: the kernel's may be 1 s old. None is ever exceeded."""
    try:
        eventually(counted(agent, rounds), 5)
    except AssertionError:
        assert counts(agent.scrape()) == of(rounds), agent.output()
    assert lost(agent) == {}


def attached(agent: AgentProcess, path: Path, times: int = 1) -> None:
    """Wait until the agent has attached all probes to the new file of this path."""
    lines = [f"the probe '{name}': {path} was replaced; attached to the new file too" for name in NAMES]
    eventually(lambda: all(agent.output().count(line) == times for line in lines), 10)


def test_calls_of_both_files_count(start_agent: StartAgent, tmp_path: Path) -> None:
    program, new = built(tmp_path, "program"), built(tmp_path, "new", "-DMOVED")
    agent = start_agent(PROBES.format(program))
    with running(program) as old:
        old.call()
        check(agent, 1)
        replace(program, new)
        attached(agent, program)
        with running(program) as young:
            young.call()
            check(agent, 2)
            old.call()
            check(agent, 3)
            before = agent.output().count("probes are up")
            agent.signal(signal.SIGHUP)
            eventually(lambda: agent.output().count("probes are up") == before + 1, 10)
            old.call()
            young.call()
            check(agent, 5)
        up = agent.scrape()
        assert [up.value("kprobe_up", probe=name) for name in NAMES] == [1] * len(NAMES)
    assert agent.end() == 0
    assert "Traceback" not in agent.output()


def test_a_reload_finds_the_new_file_at_once(start_agent: StartAgent, tmp_path: Path) -> None:
    """The supervisor's round may be quicker than the reload: no probe is attached twice by both."""
    program, new = built(tmp_path, "program"), built(tmp_path, "new", "-DMOVED")
    agent = start_agent(PROBES.format(program))
    replace(program, new)
    agent.signal(signal.SIGHUP)
    attached(agent, program)
    with running(program) as young:
        young.call()
        check(agent, 1)
    attached(agent, program)


def test_many_replacements_gather_nothing(
    start_agent: StartAgent, tmp_path: Path, tracefs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the latest files stay probed, counters go on when one is dropped, and a file may come back."""
    monkeypatch.setattr("kprobe_exporter.agent.replaced_files.MOST_OLDER", 1)
    monkeypatch.setattr("kprobe_exporter.agent.replaced_files.BURST", 100)
    program, first = built(tmp_path, "program"), tmp_path / "first"
    os.link(program, first)
    agent = start_agent(PROBES.format(program))
    with running(program) as oldest:
        oldest.call()
        for number in range(1, 4):
            replace(program, built(tmp_path, f"new{number}", *["-DMOVED"] * (number % 2)))
            attached(agent, program, number)
            with running(program) as young:
                young.call()
            check(agent, 1 + number)
        oldest.call()  # its file was replaced 3 times since
        check(agent, 4)
        assert (
            "calls in processes that run the oldest of its 2 replaced files are no longer" in agent.output()
        )
        replace(program, first)
        attached(agent, program, 4)
        oldest.call()
        check(agent, 5)
    enabled = [
        path
        for path in (tracefs / "instances/kprobe_exporter/events/kprobe_exporter").glob("*/enable")
        if path.read_text().strip() != "0"
    ]
    assert len(enabled) == 2 * (len(NAMES) + 1)  # a call has two events


def test_a_new_file_without_the_function(start_agent: StartAgent, tmp_path: Path) -> None:
    """The probe is down, says why once, goes on in the old process, and is up again with the next file."""
    program, new = built(tmp_path, "program"), built(tmp_path, "new", "-DWITHOUT")
    agent = start_agent(PROBES.format(program))
    with running(program) as old:
        replace(program, new)
        why = f"uprobe:{program}:twice: {program} has no function 'twice'"
        down = f"the probe 'entry' is down: {why}; only calls in processes that still run the file that was"
        eventually(lambda: down in agent.output(), 10)
        eventually(lambda: agent.scrape().value("kprobe_up", probe="counted") == 0, 5)
        old.call()
        check(agent, 1)
        broken = tmp_path / "broken"
        broken.write_text("#!/bin/sh\n")
        replace(program, broken)
        script = f"the probe 'entry' is down: uprobe:{program}:twice: {program} is a script"
        eventually(lambda: script in agent.output(), 10)
        program.unlink()
        old.call()
        check(agent, 2)
        replaced = agent.output()
        built(tmp_path, "repaired", "-DMOVED").rename(program)
        attached(agent, program)
        with running(program) as young:
            young.call()
            check(agent, 3)
        old.call()
        check(agent, 4)
    assert replaced.count(down) == 1
    assert replaced.count(script) == 1
    assert agent.scrape().value("kprobe_up", probe="entry") == 1
