"""A read of the kernel's counts that blocks delays neither scrapes, nor events, nor the shutdown."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.patience import eventually, within
from tests.support.suffering import AGE, CONFIG, DELIVERED, HITS, TIMES, Suffering
from tests.vm.kernels import HIST as TRIGGERS

pytestmark = [
    pytest.mark.needs("kprobe_events"),
    pytest.mark.skipif("KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on"),
]

WITHIN = 1.5
"""Seconds for a scrape: its wait for the reader and for the poller is bounded."""

END = 5
"""Seconds for the shutdown."""


@contextmanager
def stuck(file: Path, directory: Path) -> Iterator[None]:
    """Mount a FIFO over the file: a process that opens it blocks, since it has no writer.

    On exit, a blocked process gets the file's content, as from a kernel that was busy.
    """
    fifo = directory / "fifo"
    os.mkfifo(fifo)
    subprocess.run(["mount", "--bind", fifo, file], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", file], check=True)
        with suppress(OSError):  # ENXIO: no process waits
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            os.write(writer, file.read_bytes())
            os.close(writer)


def age(agent: AgentProcess) -> float:
    return agent.scrape()[AGE, frozenset()]


def scraped(agent: AgentProcess) -> Metrics:
    with within(WITHIN):
        return agent.scrape()


def test_a_poller_stuck_in_the_kernel(start_agent: StartAgent, tracefs: Path, tmp_path: Path) -> None:
    """The last counts stay, their age grows, and events are counted; afterwards all counts are complete."""
    suffering = Suffering(start_agent(CONFIG))
    agent = suffering.agent
    suffering.is_well()
    with stuck(tracefs / "kprobe_profile", tmp_path):
        eventually(lambda: age(agent) > 2)
        before = agent.scrape()
        for _ in range(TIMES):
            os.getppid()
        eventually(
            lambda: all(
                scraped(agent).value(DELIVERED, probe=probe) - before.value(DELIVERED, probe=probe) == TIMES
                for probe in ("ppid", "enters")
            )
        )
        seen = [scraped(agent) for _ in range(4)]
        ages = [metrics[AGE, frozenset()] for metrics in (before, *seen)]
        assert ages == sorted(set(ages))
        for probe in ("ppid", "soft", "enters"):
            # Without hist triggers, the hits of a tracepoint are the events that arrived.
            polled = probe != "enters" or (tracefs / TRIGGERS).exists()
            grown = seen[-1].value(HITS, probe=probe) - before.value(HITS, probe=probe)
            assert grown == (0 if polled else TIMES)
            assert seen[-1].value("kprobe_up", probe=probe) == 1
    eventually(lambda: age(agent) < 2)
    for probe in ("ppid", "soft", "enters"):
        eventually(
            lambda: agent.scrape().value(HITS, probe=probe) - before.value(HITS, probe=probe) == TIMES  # noqa: B023
        )
    suffering.is_well()


def test_the_end_does_not_wait_for_it(start_agent: StartAgent, tracefs: Path, tmp_path: Path) -> None:
    agent = start_agent(CONFIG)
    with stuck(tracefs / "kprobe_profile", tmp_path):
        eventually(lambda: age(agent) > 2)
        with within(END):
            assert agent.end() == 0
    assert "Traceback" not in agent.output()
