"""systemd is told that the agent lives only while the agent's vital threads make progress."""

import threading
from pathlib import Path

import pytest

from kprobe_exporter.service.sdnotify import Systemd
from kprobe_exporter.service.watchdog import Vital, Watchdog
from tests.support.notify_socket import Manager


class Told(Systemd):
    """A Systemd that keeps its messages instead of sending them."""

    def __init__(self, watchdog: float | None = 60.0) -> None:
        super().__init__(None, watchdog)
        self.messages: list[str] = []

    def _send(self, *lines: str) -> None:
        self.messages += lines

    def heard(self) -> list[str]:
        messages, self.messages = self.messages, []
        return messages


class Thread:
    """A thread whose progress the test sets."""

    def __init__(self) -> None:
        self.rounds: int | None = 0

    def progress(self) -> int | None:
        return self.rounds


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def reader() -> Thread:
    return Thread()


def test_while_all_is_well(told: Told, reader: Thread) -> None:
    heartbeat = Watchdog(told, [Vital("reader", reader.progress)], lambda: "6 of 6 probes are up")
    for beat in range(5):
        reader.rounds = beat
        heartbeat.beat()
        assert told.heard() == ([] if beat else ["STATUS=6 of 6 probes are up"]) + ["WATCHDOG=1"]


def test_a_thread_that_hangs_and_gets_on_again(
    told: Told, reader: Thread, caplog: pytest.LogCaptureFixture
) -> None:
    heartbeat = Watchdog(told, [Vital("reader", reader.progress)], lambda: "fine")
    heartbeat.beat()
    heartbeat.beat()  # one beat without progress is allowed: progress may come just after it
    assert told.heard() == ["STATUS=fine", "WATCHDOG=1", "WATCHDOG=1"]
    for _ in range(3):
        heartbeat.beat()
    assert told.heard() == ["STATUS=no progress of the reader"]
    assert caplog.messages == ["the reader makes no progress: the watchdog will end this"]
    reader.rounds = 1
    heartbeat.beat()
    assert told.heard() == ["STATUS=fine", "WATCHDOG=1"]
    assert caplog.messages[-1] == "the reader gets on again"


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_patience(told: Told, reader: Thread, patience: int) -> None:
    """A read that the kernel delays for a while is no reason to be killed; a read that never ends is one."""
    heartbeat = Watchdog(told, [Vital("reader", reader.progress, patience)], lambda: "fine")
    for _ in range(2 * patience):
        heartbeat.beat()
        assert "WATCHDOG=1" in told.heard()
    heartbeat.beat()
    assert "WATCHDOG=1" not in told.heard()


def test_who_has_nothing_to_do_does_not_hang(told: Told, reader: Thread) -> None:
    heartbeat = Watchdog(told, [Vital("reader", reader.progress)], lambda: "fine")
    for rounds in (None, None, None, None, 1, 1, None, 1, 1, None, None):
        reader.rounds = rounds
        heartbeat.beat()
        assert "WATCHDOG=1" in told.heard()


def test_one_that_hangs_among_others(told: Told, reader: Thread) -> None:
    poller = Thread()
    vitals = [Vital("reader", reader.progress), Vital("poller", poller.progress)]
    heartbeat = Watchdog(told, vitals, lambda: "fine")
    for beat in range(4):
        reader.rounds = beat
        heartbeat.beat()
    assert told.heard() == ["STATUS=fine", "WATCHDOG=1", "WATCHDOG=1", "STATUS=no progress of the poller"]
    for _ in range(2):
        heartbeat.beat()
    assert told.heard() == ["STATUS=no progress of the reader and the poller"]


def test_without_a_watchdog(caplog: pytest.LogCaptureFixture) -> None:
    told, reader = Told(None), Thread()
    heartbeat = Watchdog(told, [Vital("reader", reader.progress)], lambda: "fine")
    for _ in range(3):
        heartbeat.beat()
    assert told.heard() == ["STATUS=fine", "STATUS=no progress of the reader"]
    assert caplog.messages[-1] == "the reader makes no progress"


def test_the_status_is_told_when_it_changes(told: Told) -> None:
    texts = ["1 of 2", "1 of 2", "2 of 2"]
    heartbeat = Watchdog(told, [], lambda: texts.pop(0))
    for _ in range(3):
        heartbeat.beat()
    assert told.heard() == ["STATUS=1 of 2", "WATCHDOG=1", "WATCHDOG=1", "STATUS=2 of 2", "WATCHDOG=1"]


def test_a_status_that_fails_is_no_reason_to_be_killed(told: Told) -> None:
    def status() -> str:
        raise RuntimeError("a bug")

    Watchdog(told, [], status).beat()
    assert told.heard() == ["WATCHDOG=1"]


def test_the_thread(tmp_path: Path) -> None:
    """The thread reports that the agent is ready, beats at half the watchdog's time, and ends at once."""
    manager = Manager(str(tmp_path / "notify"))
    with manager.socket, Systemd(str(tmp_path / "notify"), watchdog=0.02) as systemd:
        heartbeat = Watchdog(systemd, [], lambda: "fine")
        heartbeat.start()
        assert manager.heard() == ["READY=1", "STATUS=fine"]
        assert manager.heard() == ["WATCHDOG=1"]
        assert manager.heard() == ["WATCHDOG=1"]
        heartbeat.close()
        heartbeat.close()
        assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_without_a_listener() -> None:
    heartbeat = Watchdog(Systemd(), [], lambda: "fine")
    heartbeat.start()
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]
    heartbeat.close()
