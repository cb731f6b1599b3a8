"""The poller: one read serves all callers, reads are not too frequent, and no caller waits for long."""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kprobe_exporter.model.snapshot import KernelCounts
from kprobe_exporter.tracefs.poller import MAX_AGE, Poller
from tests.support.patience import patience

SOON = patience(10)
"""Timeout in seconds for a test that hangs; a passing test never waits this long."""


class Kernel:
    """A kernel whose reads can be held up, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reads = 0
        self.error: Exception | None = None
        self.delivered: list[KernelCounts] = []
        self.free = threading.Event()
        self.free.set()
        self.reading = threading.Semaphore(0)
        self.poller = Poller(self.read, self.delivered.append, lambda: self.now)

    def read(self) -> KernelCounts:
        self.reads += 1
        self.reading.release()
        assert self.free.wait(SOON)
        if self.error is not None:
            raise self.error
        return KernelCounts(hits={"p": self.reads})

    def hold(self) -> None:
        self.free.clear()

    def wait_for_a_read(self) -> None:
        assert self.reading.acquire(timeout=SOON)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    made.poller.start()
    yield made
    made.free.set()
    made.poller.close()
    assert not any(thread.name == "kprobe-poller" for thread in threading.enumerate())


def test_anew_is_what_is_read_afterwards(kernel: Kernel) -> None:
    """Fresh numbers do not serve ``fresh``, nor does a read under way, which may have read some before."""
    assert kernel.poller.refresh(SOON)
    assert kernel.poller.refresh(SOON, fresh=True)
    assert kernel.reads == 2
    kernel.hold()
    with ThreadPoolExecutor() as pool:
        kernel.wait_for_a_read()
        kernel.wait_for_a_read()
        first = pool.submit(kernel.poller.refresh, SOON, fresh=True)
        kernel.wait_for_a_read()  # the third is under way
        second = pool.submit(kernel.poller.refresh, SOON, fresh=True)
        while kernel.poller._wanted < 4:
            time.sleep(0.001)
        kernel.free.set()
        assert first.result()
        assert second.result()
    assert kernel.reads == 4


def test_without_a_request_nothing_is_read(kernel: Kernel) -> None:
    assert kernel.reads == 0
    assert kernel.poller.age() == float("inf")


def test_who_asks_gets_fresh_numbers(kernel: Kernel) -> None:
    assert kernel.poller.refresh(SOON)
    assert kernel.delivered == [KernelCounts(hits={"p": 1})]
    kernel.now += 0.25
    assert kernel.poller.age() == 0.25


def test_young_numbers_serve_everybody(kernel: Kernel) -> None:
    assert kernel.poller.refresh(SOON)
    kernel.now += MAX_AGE * 0.99
    assert kernel.poller.refresh(SOON)
    assert kernel.reads == 1
    kernel.now += MAX_AGE * 0.02
    assert kernel.poller.refresh(SOON)
    assert kernel.reads == 2


def test_one_read_serves_all_who_asked_meanwhile(kernel: Kernel) -> None:
    """One read serves all callers that asked meanwhile, and no second read follows."""
    kernel.hold()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(kernel.poller.refresh, SOON)
        kernel.wait_for_a_read()
        others = [pool.submit(kernel.poller.refresh, 0) for _ in range(3)]
        assert [other.result(SOON) for other in others] == [False] * 3
        late = pool.submit(kernel.poller.refresh, SOON)
        kernel.free.set()
        assert first.result(SOON)
        assert late.result(SOON)
    kernel.poller.close()  # waits for the thread, so a second read would have ended
    assert kernel.reads == 1


def test_the_numbers_are_as_old_as_the_start_of_their_read(kernel: Kernel) -> None:
    """On a busy machine a read takes longer than MAX_AGE: one that began before that serves no new caller."""
    kernel.hold()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(kernel.poller.refresh, SOON)
        kernel.wait_for_a_read()
        kernel.now += MAX_AGE * 2
        second = pool.submit(kernel.poller.refresh, SOON)
        while kernel.poller._wanted < 2:
            time.sleep(0.001)
        kernel.free.set()
        assert first.result(SOON)
        assert second.result(SOON)
    assert kernel.reads == 2
    assert kernel.poller.age() == 0


def test_a_hanging_read_delays_no_other(kernel: Kernel) -> None:
    assert kernel.poller.refresh(SOON)
    kernel.now += 60
    kernel.hold()
    assert not kernel.poller.refresh(0)
    kernel.wait_for_a_read()
    kernel.wait_for_a_read()
    assert not kernel.poller.refresh(0)
    assert kernel.poller.age() == 60
    assert kernel.delivered == [KernelCounts(hits={"p": 1})]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("a bug")])
def test_a_failed_read_leaves_the_last_numbers_and_their_age(
    kernel: Kernel, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.INFO, "kprobe_exporter")
    assert kernel.poller.refresh(SOON)
    kernel.error = error
    for _ in range(3):
        kernel.now += 60
        kernel.poller.refresh(SOON)
    assert (kernel.reads, len(kernel.delivered), kernel.poller.age()) == (4, 1, 180)
    assert len(caplog.messages) == 1
    assert str(error) in caplog.messages[0]
    kernel.error = None
    assert kernel.poller.refresh(SOON)
    assert (len(kernel.delivered), kernel.poller.age()) == (2, 0)
    assert caplog.messages[1:] == ["the kernel's counts can be read again"]


def test_close_frees_who_waits_and_can_be_called_twice(kernel: Kernel) -> None:
    kernel.hold()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(kernel.poller.refresh, SOON)
        kernel.wait_for_a_read()
        closing = pool.submit(kernel.poller.close)
        assert waiting.result(SOON)
        kernel.free.set()
        closing.result(SOON)
    kernel.poller.close()
    assert kernel.poller.refresh(SOON)
    assert kernel.reads == 1


def test_close_before_start() -> None:
    Poller(KernelCounts, lambda _: None).close()


def test_a_watching_refresh_does_not_count_as_a_scrapes() -> None:
    reads, now = 0, 0.0

    def read() -> KernelCounts:
        nonlocal reads
        reads += 1
        return KernelCounts()

    poller = Poller(read, lambda counts: None, lambda: now)
    poller.start()
    try:
        for now, watching, expected in (
            (10.0, True, 1),
            (10.5, True, 1),
            (10.6, False, 2),
            (10.7, False, 2),
            (10.8, True, 2),
            (11.7, False, 3),
            (11.8, True, 3),
        ):
            assert poller.refresh(10, watching=watching)
            assert reads == expected, now
    finally:
        poller.close()
