"""A sender for the exporter's channels and its pusher, whose answers a test chooses."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tests.support.patience import patience

SOON = patience(10)
"""Timeout in seconds for a test that hangs; a passing test never waits this long."""

Item = TypeVar("Item")


class FakeSender(Generic[Item]):
    """A sender that takes ``takes(batch)`` items of each batch, once ``gate`` is open."""

    def __init__(self, takes: Callable[[Sequence[Item]], int] = len) -> None:
        self.takes = takes
        self.batches: list[list[Item]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.paused = 0.0
        self.stopped: list[float] = []
        self.closed = 0

    def export(self, items: Sequence[Item]) -> int:
        self.batches.append(list(items))
        self.arrived.release()
        self.gate.wait()
        return self.takes(items)

    def pause(self) -> float:
        return self.paused

    def stop(self, timeout: float) -> None:
        assert timeout > 0
        self.stopped.append(timeout)

    def close(self) -> None:
        self.closed += 1
