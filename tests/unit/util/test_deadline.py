"""Work that hangs is given up, and its source refused; other work goes on."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprobe_exporter.util import deadline
from kprobe_exporter.util.deadline import Deadlines, process_root
from kprobe_exporter.util.overruns import REFUSED_S, Overruns
from tests.support.patience import eventually, within


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadlines(clock: Clock) -> Deadlines:
    return Deadlines("container", overruns=Overruns(clock), clock=clock)


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """It hangs until this is set."""
    monkeypatch.setattr(deadline, "DEADLINE_S", 0.05)
    monkeypatch.setattr(deadline, "LEAST_S", 0.05)
    event = threading.Event()
    yield event
    event.set()


def test_results_and_errors(deadlines: Deadlines) -> None:
    assert deadlines.run("a", lambda: 7) == 7
    with pytest.raises(FileNotFoundError):
        deadlines.run("a", Path("/no/such/file").read_bytes)
    with pytest.raises(TimeoutError, match="of the work itself"):
        deadlines.run("a", lambda: (_ for _ in ()).throw(TimeoutError("of the work itself")))
    assert deadlines.refused() == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork(clock: Clock) -> None:
    """A child has no thread of its parent."""
    deadlines = Deadlines("path", only_stalls=True, overruns=Overruns(clock), clock=clock)
    deadlines.run("a", int)
    if (pid := os.fork()) == 0:
        os._exit(deadlines.run("a", lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_work_that_hangs(hangs: threading.Event, deadlines: Deadlines, clock: Clock) -> None:
    """Its source is refused at once for a while, and as long as the thread has not come back."""
    tried = []

    def work() -> bool:
        tried.append(1)
        return hangs.wait()

    for _ in range(5):
        with pytest.raises(TimeoutError, match="does not answer"):
            deadlines.run("a", work)
        clock.now += REFUSED_S
    assert len(tried) == 1
    assert deadlines.refused() == ["a"]
    assert deadlines.run("b", lambda: 7) == 7
    hangs.set()
    eventually(lambda: not deadlines.refused())
    assert deadlines.run("a", work)


def test_a_deadline_of_stalls_alone(hangs: threading.Event, clock: Clock) -> None:
    """Work that goes on is waited for, as a large program's symbols on a slow disk; silent work is not."""
    deadlines = Deadlines("path", only_stalls=True, overruns=Overruns(clock), clock=clock)
    end = time.monotonic() + 20 * deadline.DEADLINE_S

    def works() -> int:
        while time.monotonic() < end:
            hangs.wait(deadline.DEADLINE_S / 50)
        return 7

    assert deadlines.run("large", works) == 7
    with pytest.raises(TimeoutError):
        deadlines.run("dead", hangs.wait)
    assert deadlines.refused() == ["dead"]


def test_threads_that_hang_are_bounded(
    hangs: threading.Event, deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "MOST_HANGING", 3)
    monkeypatch.setattr(deadline, "LEAST_S", 0.001)
    before = {*threading.enumerate()}
    for number in range(10):
        with pytest.raises(TimeoutError):
            deadlines.run(str(number), hangs.wait)
    assert len({*threading.enumerate()} - before) == 3


def test_a_request_to_stop_ends_a_wait(deadlines: Deadlines) -> None:
    """Work is given up, and none is begun, until the context is left."""
    hangs, stop = threading.Event(), threading.Event()
    began = threading.Event()

    def work() -> bool:
        began.set()
        stop.set()
        return hangs.wait()

    try:
        with within(deadline.DEADLINE_S / 2), deadlines.until(stop.is_set):
            with pytest.raises(TimeoutError):
                deadlines.run("a", work)
            began.clear()
            with pytest.raises(TimeoutError):
                deadlines.run("b", work)
        assert not began.is_set()
        assert deadlines.run("c", lambda: 7) == 7
    finally:
        hangs.set()


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/proc/7/root/usr/bin/x", "/proc/7/root"),
        ("/host/proc/7/root:libc.so.6", "/host/proc/7/root"),
        ("/usr/bin/x", None),
        ("/proc/7/rootless/x", None),
        ("libc.so.6", None),
    ],
)
def test_the_root_of_a_process(path: str, root: str | None) -> None:
    assert process_root(path) == root
