"""The pusher: when it pushes, that it counts each data point once, and that it closes in time."""

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.metrics.export import Metric

from kprobe_exporter.export.otlp.channel import SignalCounts
from kprobe_exporter.export.otlp.metrics import Conversion, size
from kprobe_exporter.export.otlp.pusher import POINTS, Pusher
from kprobe_exporter.model.values import Family, Snapshot
from tests.support.patience import patience

SNAPSHOT = Snapshot(
    (Family("kprobe_x_total", "counter", "", ("n",), {(str(n),): n for n in range(3 * POINTS)}),), ()
)

SOON = patience(10)
"""Timeout in seconds for a test that hangs; a passing test never waits this long."""


class FakeSender:
    """A sender that takes all but ``rejected`` data points of each batch, once ``gate`` is open."""

    def __init__(self, rejected: int = 0) -> None:
        self.rejected = rejected
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.sizes: list[int] = []
        self.paused = 0.0
        self.closed = 0

    def export(self, items: Sequence[Metric]) -> int:
        self.sizes.append(size(items))
        self.arrived.release()
        self.gate.wait()
        return size(items) - self.rejected

    def pause(self) -> float:
        return self.paused

    def stop(self, timeout: float) -> None:
        assert timeout > 0

    def close(self) -> None:
        self.closed += 1


def pusher(sender: FakeSender, interval: float = 3600) -> Pusher:
    """Return a pusher whose clock stands still, so each push is in time, even after a slow conversion."""
    return Pusher(lambda: SNAPSHOT, sender, interval, Conversion(0), lambda: 0.0)


def test_closing_pushes_a_last_time() -> None:
    sender = FakeSender(rejected=2)
    made = pusher(sender)
    made.start()
    made.close(SOON)
    made.close(SOON)
    assert sender.sizes == [POINTS] * 3
    assert made.counts() == SignalCounts(exported=3 * POINTS - 6, failed=6)
    assert sender.closed == 1


def test_again_and_again() -> None:
    sender = FakeSender()
    made = pusher(sender, interval=0.01)
    made.start()
    for _ in range(4):
        assert sender.arrived.acquire(timeout=SOON)
    made.close(SOON)
    assert made.counts() == SignalCounts(exported=len(sender.sizes) * POINTS)
    assert len(sender.sizes) % 3 == 0


def test_what_is_late_is_dropped() -> None:
    """Data points that are late are dropped, because the next push has all of them again."""
    now = 0.0

    def clock() -> float:
        return now

    class Slow(FakeSender):
        def export(self, items: Sequence[Metric]) -> int:
            nonlocal now
            now += 3600
            return super().export(items)

    made = Pusher(lambda: SNAPSHOT, Slow(), 3600, Conversion(0), clock)
    made.start()
    made.close(SOON)
    assert made.counts() == SignalCounts(exported=POINTS, dropped=2 * POINTS)


def test_silence_that_was_asked_for() -> None:
    sender = FakeSender()
    sender.paused = 60
    made = pusher(sender)
    made.start()
    made.close(SOON)
    assert made.counts() == SignalCounts(dropped=3 * POINTS)


def test_closing_gives_up_a_request_without_an_answer() -> None:
    sender = FakeSender()
    sender.gate.clear()
    made = pusher(sender, interval=0.01)
    made.start()
    assert sender.arrived.acquire(timeout=SOON)
    made.close(0.01)
    assert made.counts() == SignalCounts(dropped=2 * POINTS, failed=POINTS)
    sender.gate.set()
    made._thread.join(SOON)
    assert made.counts() == SignalCounts(dropped=2 * POINTS, failed=POINTS)


def test_an_ended_pusher_sends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A pusher that has ended takes no snapshot: the snapshot's sources may be gone by then."""
    asked = 0

    def snapshot() -> Snapshot:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise RuntimeError("closed")
        return SNAPSHOT

    sender = FakeSender()
    sender.gate.clear()
    made = Pusher(snapshot, sender, 0.01, Conversion(0), lambda: 0.0)
    made.start()
    assert sender.arrived.acquire(timeout=SOON)
    made.close(0.01)
    sender.gate.set()
    made._thread.join(SOON)
    assert asked == 1
    assert not caplog.records


def test_closing_one_that_was_never_started() -> None:
    sender = FakeSender()
    made = pusher(sender)
    made.close(SOON)
    assert made.counts() == SignalCounts()
    assert sender.closed == 1


@pytest.mark.parametrize("where", ["snapshot", "sender"])
def test_a_mistake_does_not_end_the_thread(where: str, caplog: pytest.LogCaptureFixture) -> None:
    calls = threading.Semaphore(0)

    class Raising(FakeSender):
        def export(self, items: Sequence[Metric]) -> int:
            if where == "sender":
                raise RuntimeError("gone")
            return super().export(items)

    def snapshot() -> Snapshot:
        calls.release()
        if where == "snapshot":
            raise KeyError("x")
        return SNAPSHOT

    made = Pusher(snapshot, Raising(), 0.001, Conversion(0), clock=lambda: 0.0)
    made.start()
    for _ in range(3):
        assert calls.acquire(timeout=SOON)
    made.close(SOON)
    assert len(caplog.records) == 1
    assert made.counts().exported == 0
    assert (made.counts().failed > 0) is (where == "sender")
