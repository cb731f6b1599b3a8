"""An orderly end, a killed agent's successor and `cleanup` each leave the machine as it was."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.foreign import PROBES, foreign_things
from tests.support.leftovers import definitions, instances, unchanged
from tests.support.patience import eventually
from tests.support.provoked_calls import getppid


def has_more_hits(agent: AgentProcess, than: float) -> bool:
    return agent.scrape().value("kprobe_hits_total", probe="getppid") > than


def test_sigterm_leaves_everything_as_it_was(
    start_agent: StartAgent, tracefs: Path, files: MountedTracefs
) -> None:
    files.write("trace_marker", "words of the top level")
    with unchanged(tracefs), foreign_things(files):
        agent = start_agent(PROBES)
        assert "kprobe_exporter" in instances(tracefs)
        assert agent.scrape().value("kprobe_up", probe="open") == 1
        assert agent.end() == 0
    assert b"words of the top level" in files.read("trace")
    assert "Traceback" not in agent.output()


def test_a_killed_agents_leftovers_go_at_the_next_start(
    start_agent: StartAgent, tracefs: Path, files: MountedTracefs
) -> None:
    with unchanged(tracefs), foreign_things(files):
        other = start_agent("global: {tracefs_instance: other_agent}\n" + PROBES)
        killed = start_agent(PROBES)
        assert killed.end(signal.SIGKILL) == -signal.SIGKILL
        assert "kprobe_exporter" in instances(tracefs)
        successor = start_agent(PROBES)
        assert "removing what a killed agent left" in successor.output()
        for agent in (other, successor):
            hits = agent.scrape().value("kprobe_hits_total", probe="getppid")
            os.getppid()
            eventually(partial(has_more_hits, agent, hits))
        assert successor.end() == 0
        assert other.scrape().value("kprobe_up", probe="open") == 1
        assert other.end() == 0


def test_a_second_agent_of_the_same_name_says_so(start_agent: StartAgent) -> None:
    first = start_agent(PROBES)
    second = start_agent(PROBES, serving=False)
    assert second.wait() == 1
    assert "another live agent holds the tracefs instance 'kprobe_exporter'" in second.output()
    assert len(second.output().splitlines()) == 1
    assert first.scrape().value("kprobe_up", probe="open") == 1


def test_cleanup_removes_what_is_dead_and_keeps_what_lives(
    start_agent: StartAgent, tracefs: Path, files: MountedTracefs
) -> None:
    def cleanup() -> str:
        result = CliRunner().invoke(main, ["cleanup"])
        assert result.exit_code == 0
        return result.output

    assert cleanup() == "no instance and no probe of 'kprobe_exporter' exists\n"
    with unchanged(tracefs), foreign_things(files):
        agent = start_agent(PROBES)
        assert cleanup() == "a live agent holds 'kprobe_exporter': nothing was removed\n"
        assert agent.scrape().value("kprobe_up", probe="open") == 1
        agent.end(signal.SIGKILL)
        assert "removed instances/kprobe_exporter and " in cleanup()


def test_sigterm_at_any_moment_of_the_start(start_agent: StartAgent, tracefs: Path) -> None:
    """SIGTERM from before the first line of code to after the agent serves leaves the kernel clean."""
    before = definitions(tracefs), instances(tracefs)
    started = time.monotonic()
    start_agent(PROBES).end()
    whole = time.monotonic() - started
    ended = []
    for part in range(9):
        agent = start_agent(PROBES, serving=False)
        time.sleep(whole * part / 7)
        if part == 8:  # the machine may be slower now than it was at the first start
            agent.wait_until_serving()
        status = agent.end()
        ended.append(status)
        assert status in (0, -signal.SIGTERM), agent.output()  # -SIGTERM: it came before the handler was set
        assert "Traceback" not in agent.output()
        assert (definitions(tracefs), instances(tracefs)) == before
    assert 0 in ended


@pytest.mark.needs("kprobe_events")
def test_an_event_name_that_another_tool_uses(
    start_agent: StartAgent, tracefs: Path, files: MountedTracefs
) -> None:
    """Our event gets another name in tracefs; the label stays, and only our own firings count."""
    with foreign_things(files):
        agent = start_agent(PROBES)
        assert "kprobe_exporter/getppid_2 " in definitions(tracefs)
        getppid()
        eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="getppid") == 23)
        assert agent.scrape().value("kprobe_exporter_events_total", probe="getppid") == 23


@pytest.mark.needs("kprobe_events")
def test_an_event_name_that_another_tool_takes_later(start_agent: StartAgent, files: MountedTracefs) -> None:
    """kprobe_profile shows no group, and yet another tool's counts under the same name do not become ours."""
    agent = start_agent(PROBES)
    with foreign_things(files):
        getppid()
        files.write("instances/foreign/events/foreign/getppid/enable", "0")
        getppid()
        files.write("instances/foreign/events/foreign/getppid/enable", "1")
        eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="getppid") >= 46)
        metrics = agent.scrape()
        assert metrics.value("kprobe_hits_total", probe="getppid") == metrics.value(
            "kprobe_exporter_events_total", probe="getppid"
        )


def test_a_reader_of_our_pipe_is_told(start_agent: StartAgent, files: MountedTracefs) -> None:
    """A killed agent's instance cannot be taken over while a file in it is open; the log says why."""
    agent = start_agent(PROBES)
    agent.end(signal.SIGKILL)
    pipe = files.open_pipe("instances/kprobe_exporter/trace_pipe")
    try:
        successor = start_agent(PROBES, serving=False)
        assert successor.wait() == 1
        assert "another process has a file in it open (EBUSY)" in successor.output()
    finally:
        os.close(pipe)
    assert CliRunner().invoke(main, ["cleanup"]).exit_code == 0


def test_two_addresses_and_one_taken(start_agent: StartAgent, tracefs: Path) -> None:
    """An agent whose address is in use ends with a message before it changes the kernel."""
    first = start_agent(PROBES)
    taken = first.address.removeprefix("http://")
    second = start_agent(
        "global: {tracefs_instance: other_agent}\n" + PROBES, "--web.listen-address", taken, serving=False
    )
    assert second.wait() == 1
    assert "in use" in second.output()
    assert "other_agent" not in instances(tracefs)
