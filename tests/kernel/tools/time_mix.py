"""A load that does one thing after another, each of a class of its own, and measures each itself."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tests.kernel.tools.harness import Facts, account, burn
from tests.support.patience import slowness

PHASE = 0.3
"""Seconds of one class of the load."""


def margin(seconds: float) -> float:
    """What a class may differ from the program's clock: 1 %, or 5 ms on an idle machine.

    On a busy or emulated one it is up to four times as much: there the time from a wake-up's event to the
    moment from which the scheduler counts a wait is milliseconds.
    """
    return max(0.01 * seconds, 0.005) * min(slowness(), 4)


def near(seconds: float) -> object:
    """Seconds that differ by no more than that."""
    return pytest.approx(seconds, abs=margin(seconds))


@contextmanager
def after_phase(act: Callable[[], object]) -> Iterator[None]:
    """Have something done by another thread at the end of a phase."""
    timer = threading.Timer(PHASE, act)
    timer.start()
    yield
    timer.join()


class Mix:
    """A thread that does one thing after another, and measures each."""

    def __init__(self) -> None:
        self.facts: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run)
        self._created = 0.0
        self._lock = threading.Lock()
        self._lock.acquire()

    def measured(self) -> Facts:
        self._created = time.monotonic()
        self._thread.start()
        self._thread.join()
        return self.facts

    def _run(self) -> None:
        burn(PHASE)
        self._phase("sleep", lambda: time.sleep(PHASE))
        self._phase("lock", lambda: self._lock.acquire(timeout=PHASE))
        self._phase("poll", lambda: select.poll().poll(PHASE * 1000))
        read, write = os.pipe()
        with after_phase(lambda: os.write(write, b"x")):
            self._phase("pipe", lambda: os.read(read, 1))
        one, other = socket.socketpair()
        with closing(one), closing(other), after_phase(lambda: other.send(b"x")):
            self._phase("network", lambda: one.recv(1))
        wall = time.monotonic() - self._created
        ran, waited, _ = account()  # of all its life
        blocked = wall - (ran + waited) / 1e9
        self.facts |= {
            "tid": threading.get_native_id(),
            "wall": wall,
            "running": ran / 1e9,
            "waiting_for_cpu": waited / 1e9,
            # The rest are joins of timers, and moments in which another thread had the interpreter.
            "lock": blocked - sum(self.facts[name] for name in ("sleep", "poll", "pipe", "network")),
        }

    def _phase(self, name: str, act: Callable[[], object]) -> None:
        """Do something, and note the seconds in which it was neither running nor waiting for a CPU."""
        ran, waited, _ = account()
        begin = time.monotonic()
        act()
        passed = time.monotonic() - begin
        after = account()
        self.facts[name] = passed - (after[0] - ran + after[1] - waited) / 1e9
