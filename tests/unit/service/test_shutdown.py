"""The request to stop, from signal handlers and threads."""

import os
import signal
import threading
from types import FrameType

import pytest

from kprobe_exporter.service.shutdown import Shutdown


def test_it_is_set_once_and_for_all() -> None:
    stop = Shutdown()
    assert not stop.is_set()
    stop.set()
    stop.set()
    assert stop.is_set()
    stop.wait()


def test_a_thread_wakes_the_one_that_waits() -> None:
    stop = Shutdown()
    thread = threading.Thread(target=stop.set)
    thread.start()
    stop.wait()
    thread.join()


def test_a_signal_in_the_middle_of_setting_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here threading.Event would wait for its own lock forever."""
    stop = Shutdown()
    write = os.write

    def interrupted(fd: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        signal.raise_signal(signal.SIGUSR1)
        return write(fd, data)

    def handler(number: int, frame: FrameType | None) -> None:
        stop.set()

    monkeypatch.setattr(os, "write", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        stop.set()
    finally:
        signal.signal(signal.SIGUSR1, before)
    stop.wait()


def test_reloads_are_waited_for_as_well() -> None:
    """All reloads requested before a wait are one, a later request is another, and a stop comes first."""
    stop = Shutdown()
    stop.ask_reload()
    stop.ask_reload()
    assert not stop.wait()
    threading.Thread(target=stop.ask_reload).start()
    assert not stop.wait()
    stop.ask_reload()
    stop.set()
    assert stop.wait()
    assert stop.wait()


def test_a_pipe_that_is_full_wakes_too() -> None:
    stop = Shutdown()
    for _ in range(100_000):
        stop.set()
    stop.wait()


def test_a_second_signal_gives_up() -> None:
    """But not the first one after a thread has requested the stop."""
    stop = Shutdown()
    stop.set()
    stop.signal()
    assert (stop.is_set(), stop.gives_up) == (True, False)
    stop.signal()
    assert stop.gives_up
