"""The messages that a service manager gets from a whole agent, from its start to its end."""

import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import PlayBack
from tests.support.notify_socket import EXTENDED, Manager

CONFIG = """
probes:
  - {name: exec, attach: 'tracepoint:sched:sched_process_exec'}
  - {name: absent, attach: 'tracepoint:no:such'}
"""
UP = "STATUS=1 of 2 probes are up; down: absent"


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_life(play_back: PlayBack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    address = f"{'@' if kind == 'abstract' else ''}{tmp_path}/notify"
    manager = Manager(address)
    with manager.socket:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        agent = play_back(CONFIG, {})
        assert manager.heard() == ["STATUS=installing 2 probes", EXTENDED]
        assert manager.heard() == ["READY=1", UP]
        for _ in range(3):
            assert manager.heard() == ["WATCHDOG=1"]

        agent.signal(signal.SIGHUP)
        reloading = but_for_the_watchdog(manager)
        assert reloading[0] == "RELOADING=1"
        assert reloading[1].startswith("MONOTONIC_USEC=")
        assert but_for_the_watchdog(manager) == ["READY=1", UP]

        agent.signal(signal.SIGTERM)
        assert but_for_the_watchdog(manager) == ["STOPPING=1", "STATUS=removing the probes"]
        assert agent.wait() == 0


def test_a_reload_that_fails(play_back: PlayBack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent keeps its configuration, reports READY=1 again, and its status gives the reason."""
    manager = Manager(str(tmp_path / "notify"))
    with manager.socket:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        agent = play_back(CONFIG, {})
        assert manager.heard()[0] == "STATUS=installing 2 probes"
        assert manager.heard()[0] == "READY=1"
        (tmp_path / "config.yaml").write_text("probes: [{name: X}]")
        agent.signal(signal.SIGHUP)
        assert manager.heard()[0] == "RELOADING=1"
        ready, status = manager.heard()
        assert (ready, status[:21]) == ("READY=1", "STATUS=not reloaded: ")
        assert agent.end() == 0


def test_a_manager_that_went_away(
    play_back: PlayBack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    agent = play_back(CONFIG, {})
    assert agent.scrape().value("kprobe_up", probe="exec") == 1
    assert agent.end() == 0
    assert "Traceback" not in agent.output()


def but_for_the_watchdog(manager: Manager) -> list[str]:
    """The next message other than WATCHDOG=1."""
    while (heard := manager.heard()) == ["WATCHDOG=1"]:
        pass
    return heard
