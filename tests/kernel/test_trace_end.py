"""A trace leaves nothing behind if it ends by a signal at any moment, a closed output, or SIGKILL."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.kernel.conftest import StartAgent
from tests.support.foreign import foreign_things
from tests.support.leftovers import definitions, instances, unchanged
from tests.support.patience import eventually
from tests.support.trace_process import DEADLY, MOST, TRACING, StartTrace, TraceProcess, getppid, lines, work

pytestmark = pytest.mark.needs("kprobe_events")

OPENS = """
probes:
  - {name: mine, attach: "kprobe:sys_getppid", aggregate: events}
"""


def test_a_signal_at_any_moment(trace: StartTrace, tracefs: Path) -> None:
    """A trace ends cleanly after a signal at any moment, and a second one at any moment after it."""
    before = definitions(tracefs), instances(tracefs)
    started = time.monotonic()
    whole = trace("-s", getppid())
    whole.wait_for(TRACING)
    took = time.monotonic() - started
    assert whole.end() == 0
    for part in range(16):
        number = DEADLY[part % 4]
        one = trace("-s", "-p", str(os.getpid()), getppid())
        time.sleep(took * part / 14)
        one.signal(number)
        time.sleep(took * (part % 5) / 20)
        assert one.end(number) in (0, 1, -number), one.errors  # 1 or -N: before its code runs, or after it
        assert "Traceback" not in one.errors
        assert (definitions(tracefs), instances(tracefs)) == before


def test_a_reader_that_goes_away(trace: StartTrace) -> None:
    """A trace notices without an event that the reader of its output is gone."""
    running = []
    for way in ([], ["--json"], ["--count", "-L", str(os.getpid())]):
        read, write = os.pipe()
        running.append((read, trace(*way, getppid(), "common_pid == 1", stdout=write)))
        os.close(write)
    for read, one in running:
        one.wait_until_enabled()
        os.close(read)
    assert [one.wait() for _, one in running] == [0, 0, 0]


def test_a_reader_that_does_not_read(trace: StartTrace) -> None:
    running = []
    for way in ([], ["--json"]):
        read, write = os.pipe()
        running.append((read, write, trace(*way, getppid(), stdout=write)))
    for *_, one in running:
        one.wait_until_enabled()
    room = select.poll()
    for _, write, _ in running:
        room.register(write, select.POLLOUT)

    def full() -> bool:
        work(1000)
        return not room.poll(0)

    eventually(full, 60)
    for read, write, one in running:
        assert one.end(signal.SIGTERM) == 0
        os.close(read)
        os.close(write)


def test_killed(trace: StartTrace, start_agent: StartAgent, files: MountedTracefs, tracefs: Path) -> None:
    """The next command removes a killed trace; another tool's probe, a live agent and a live trace stay."""
    with unchanged(tracefs), foreign_things(files):
        agent = start_agent("global: {tracefs_instance: other_agent}\n" + OPENS)
        living = trace(getppid().replace("mine", "living"))
        living.wait_for(b"Tracing kprobe living.")
        for successor in successors(trace, start_agent):
            killed = trace("-s", getppid())
            killed.wait_for(TRACING)
            work()
            assert killed.end(signal.SIGKILL) == -signal.SIGKILL
            left = f"kprobe_exporter_trace_{killed.pid}"
            assert left in instances(tracefs)
            assert f"{left}/" in definitions(tracefs)
            successor(living, killed)
            assert left not in instances(tracefs)
            assert f"{left}/" not in definitions(tracefs)
        count = len(living.output)
        hits = agent.scrape().value("kprobe_hits_total", probe="mine")
        work()
        eventually(lambda: len(living.output) > count)
        eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="mine") >= hits + MOST)
        assert living.end() == 0
        assert agent.end() == 0


def successors(
    trace: StartTrace, start_agent: StartAgent
) -> list[Callable[[TraceProcess, TraceProcess], None]]:
    """Return the commands that change the kernel; each is called with the live and the killed trace."""

    def traces(living: TraceProcess, killed: TraceProcess) -> None:
        other = trace(getppid())
        other.wait_for(TRACING)
        assert other.end() == 0

    def runs(living: TraceProcess, killed: TraceProcess) -> None:
        start_agent(OPENS).end()

    def cleans(living: TraceProcess, killed: TraceProcess) -> None:
        result = CliRunner().invoke(main, ["cleanup"])
        assert result.exit_code == 0
        name = killed.instance.name
        assert f"removed instances/{name} and 2 definitions of the group '{name}'\n" in result.output
        assert f"a live trace holds '{living.instance.name}'" in result.output

    def looks(living: TraceProcess, killed: TraceProcess) -> None:
        assert CliRunner().invoke(main, ["doctor"]).exit_code == 0

    return [traces, runs, cleans, looks]


def test_beside_an_agent_whose_probe_has_the_same_name(trace: StartTrace, start_agent: StartAgent) -> None:
    """The trace shows its events under the requested name, and the agent counts each of its own once."""
    agent = start_agent(OPENS)
    one = trace(getppid(), f"common_pid == {os.getpid()}")
    one.wait_for(TRACING)
    before = agent.scrape().value("kprobe_exporter_events_total", probe="mine")
    work()
    assert one.end() == 0
    assert len(lines(one)) == MOST

    def counted() -> tuple[float, float]:
        metrics = agent.scrape()
        return (
            metrics.value("kprobe_exporter_events_total", probe="mine"),
            metrics.value("kprobe_hits_total", probe="mine"),
        )

    with suppress(AssertionError):  # the agent reads the kernel's counts at most once a second
        eventually(lambda: counted() == (before + MOST, before + MOST), 5)
    events, hits = counted()
    assert events == hits >= before + MOST
