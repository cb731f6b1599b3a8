"""A burst of signals ends the agent in order, and SIGHUP reloads its configuration."""

import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import PlayBack
from tests.support.patience import eventually

CONFIG = "probes: [{name: exec, attach: 'tracepoint:sched:sched_process_exec'}]"


@pytest.mark.parametrize("attempt", range(10))
def test_a_burst_of_signals(play_back: PlayBack, attempt: int) -> None:
    """Signals repeat, as when a terminal's Ctrl-C reaches make and the agent, and make passes it on."""
    agent = play_back(CONFIG, {})  # it is about to wait, when a signal may get lost
    for _ in range(100):
        agent.signal(signal.SIGTERM)
        agent.signal(signal.SIGINT)
    assert agent.wait() == 0
    assert "Traceback" not in agent.output()


def test_sighup_reads_the_configuration_again(play_back: PlayBack, tmp_path: Path) -> None:
    agent = play_back(CONFIG, {})
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("name: exec", "name: other"))
    agent.signal(signal.SIGHUP)
    eventually(lambda: agent.scrape().value("kprobe_up", probe="other") == 1)
    assert agent.scrape().labels("kprobe_up") == [{"probe": "other"}]
    file.write_text("probes: [")
    agent.signal(signal.SIGHUP)
    eventually(lambda: agent.scrape().value("kprobe_exporter_config_last_reload_successful") == 0)
    assert agent.scrape().value("kprobe_up", probe="other") == 1
    assert "the configuration was not reloaded" in agent.output()
    assert agent.end() == 0
