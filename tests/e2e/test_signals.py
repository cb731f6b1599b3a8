"""Signals, one upon the other, end the agent in order."""

import signal

import pytest

from tests.e2e.conftest import PlayBack

CONFIG = "probes: [{name: exec, attach: 'tracepoint:sched:sched_process_exec'}]"


@pytest.mark.parametrize("attempt", range(10))
def test_a_burst_of_signals(play_back: PlayBack, attempt: int) -> None:
    """As from a terminal whose Ctrl-C reaches make and the agent, and make passes it on."""
    agent = play_back(CONFIG, {})  # it is about to wait, which is when a signal can go unnoticed
    for _ in range(100):
        agent.signal(signal.SIGTERM)
        agent.signal(signal.SIGINT)
    assert agent.wait() == 0
    assert "Traceback" not in agent.output()


def test_sighup_is_told_and_survived(play_back: PlayBack) -> None:
    agent = play_back(CONFIG, {})
    agent.signal(signal.SIGHUP)
    assert agent.scrape().value("kprobe_up", probe="exec") == 1
    assert agent.end() == 0
    assert "reloading is not in this version" in agent.output()
