"""The channel counts each item once, even if its sender fails, and close() takes bounded time."""

import gc
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.export.otlp.channel import BATCH, ITEM_BYTES, TURN, Channel, SignalCounts, short_turns
from tests.support.otlp_sender import SOON, FakeSender
from tests.support.patience import eventually


def channel_of(sender: FakeSender[int], capacity: int = 10, **settings: Any) -> Channel[int]:
    return Channel("logs", lambda item: item, sender, capacity, **settings)


@contextmanager
def running(channel: Channel[int], sender: FakeSender[int]) -> Iterator[None]:
    channel.start()
    try:
        yield
    finally:
        sender.gate.set()
        channel.close(SOON)


@pytest.fixture
def sender() -> FakeSender[int]:
    return FakeSender()


def test_all_is_sent_in_order_and_in_batches(sender: FakeSender[int]) -> None:
    channel = channel_of(sender, 10_000)
    with running(channel, sender):
        assert all(channel.put(n) for n in range(2000))
    assert [n for batch in sender.batches for n in batch] == list(range(2000))
    assert max(map(len, sender.batches)) <= BATCH
    assert channel.counts() == SignalCounts(exported=2000)
    assert sender.stopped == [SOON]
    assert sender.closed == 1


def test_a_full_batch_does_not_wait_for_more(sender: FakeSender[int]) -> None:
    channel = channel_of(sender, 10_000, linger=3600)
    with running(channel, sender):
        for n in range(BATCH):
            channel.put(n)
        assert sender.arrived.acquire(timeout=SOON)
        assert len(sender.batches[0]) == BATCH


def test_a_queue_smaller_than_a_batch_is_full_enough(sender: FakeSender[int]) -> None:
    channel = channel_of(sender, 3, linger=3600)
    with running(channel, sender):
        for n in range(3):
            assert channel.put(n)
        assert sender.arrived.acquire(timeout=SOON)
        assert sender.batches == [[0, 1, 2]]


def test_few_are_sent_after_a_while(sender: FakeSender[int]) -> None:
    channel = channel_of(sender, 10_000, linger=0.01)
    with running(channel, sender):
        channel.put(1)
        assert sender.arrived.acquire(timeout=SOON)
        channel.put(2)
        assert sender.arrived.acquire(timeout=SOON)
    assert sender.batches == [[1], [2]]


@given(st.lists(st.integers(-1000, 1000), max_size=30), st.integers(1, 50), st.integers(0, 100))
def test_the_counts_add_up(takes: list[int], capacity: int, emitted: int) -> None:
    """No item is counted twice, even if the sender returns nonsense."""
    told = iter(takes)
    sender = FakeSender[int](lambda items: next(told, len(items)))
    channel = channel_of(sender, capacity, linger=0)
    with running(channel, sender):
        for n in range(emitted):
            channel.put(n)
    counts = channel.counts()
    assert sum(counts) == emitted
    assert min(counts) >= 0
    assert counts.dropped == emitted - sum(map(len, sender.batches))


def test_who_asks_is_told_of_what_arrived() -> None:
    """``arrived`` gets no batch that the collector rejected in part: which items it rejected is unknown."""
    takes = iter([10, 9, 0, 10])
    sender, told = FakeSender[int](lambda items: next(takes)), list[list[int]]()
    channel = channel_of(sender, linger=3600, arrived=lambda batch: told.append(list(batch)))
    with running(channel, sender):
        for batch in range(4):
            for n in range(10):
                assert channel.put(10 * batch + n)
            assert sender.arrived.acquire(timeout=SOON)
    assert told == [list(range(10)), list(range(30, 40))]
    assert channel.counts() == SignalCounts(exported=29, failed=11)


def test_a_full_queue_drops_and_says_so(sender: FakeSender[int]) -> None:
    sender.gate.clear()
    channel = channel_of(sender, linger=0)
    with running(channel, sender):
        channel.put(0)
        assert sender.arrived.acquire(timeout=SOON)
        assert [channel.put(n) for n in range(1, 16)] == [True] * 10 + [False] * 5
        assert channel.counts() == SignalCounts(dropped=5)
    assert channel.counts() == SignalCounts(exported=11, dropped=5)


@pytest.mark.parametrize(("size", "kept"), [(ITEM_BYTES, 10), (ITEM_BYTES + 1, 9), (100 * ITEM_BYTES, 1)])
def test_a_queue_is_full_by_bytes_as_well(sender: FakeSender[int], size: int, kept: int) -> None:
    """Items under way take no room, and an empty queue takes any item."""
    channel = channel_of(sender, 10, linger=0, memory=lambda item: item)

    def all_put_are_sent() -> bool:
        return sum(channel.counts()) == 12 * rounds

    sender.gate.clear()
    with running(channel, sender):
        for rounds in (1, 2):  # noqa: B007
            channel.put(1)
            assert sender.arrived.acquire(timeout=SOON)
            assert [channel.put(size) for _ in range(11)] == [True] * kept + [False] * (11 - kept)
            sender.gate.set()
            assert sender.arrived.acquire(timeout=SOON)
            eventually(all_put_are_sent)
            sender.gate.clear()
    assert channel.counts() == SignalCounts(exported=2 * (1 + kept), dropped=2 * (11 - kept))


def test_closing_gives_up_a_request_without_an_answer(sender: FakeSender[int]) -> None:
    sender.gate.clear()
    channel = channel_of(sender, 10_000, linger=0)
    channel.start()
    channel.put(0)
    assert sender.arrived.acquire(timeout=SOON)
    for n in range(1, 6):
        channel.put(n)
    assert channel.close(0.01) == 6
    assert channel.counts() == SignalCounts(dropped=5, failed=1)
    sender.gate.set()
    channel._thread.join(SOON)
    assert not channel._thread.is_alive()
    assert channel.counts() == SignalCounts(dropped=5, failed=1), "a late answer counts no more"
    assert len(sender.batches) == 1


def test_closing_twice_and_using_it_afterwards(sender: FakeSender[int]) -> None:
    channel = channel_of(sender)
    channel.start()
    assert channel.close(SOON) == 0
    assert channel.close(SOON) == 0
    assert not channel.put(1)
    assert channel.counts() == SignalCounts(dropped=1)
    assert (sender.stopped, sender.closed) == ([SOON], 1)


def test_closing_one_that_was_never_started(sender: FakeSender[int]) -> None:
    channel = channel_of(sender)
    channel.put(1)
    channel.close(SOON)
    assert channel.counts() == SignalCounts(dropped=1)


def test_silence_that_the_collector_asked_for_outlasts_the_channel(sender: FakeSender[int]) -> None:
    sender.paused = 3600
    channel = channel_of(sender, linger=0)
    channel.start()
    channel.put(1)
    channel.close(SOON)
    assert channel.counts() == SignalCounts(dropped=1)
    assert sender.batches == []


def test_a_mistake_in_building_costs_its_item_alone(caplog: pytest.LogCaptureFixture) -> None:
    def build(item: int) -> int:
        if item % 100 == 7:
            raise KeyError("layout_id")
        return item

    sender = FakeSender[int]()
    channel: Channel[int] = Channel("logs", build, sender, 1000)
    with caplog.at_level(logging.INFO, "kprobe_exporter"), running(channel, sender):
        for n in range(1000):
            channel.put(n)
    assert channel.counts() == SignalCounts(exported=990, failed=10)
    assert [r.getMessage() for r in caplog.records] == [
        "one of the logs cannot be built: KeyError('layout_id')"
    ]


def test_a_sender_that_raises_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    def takes(items: Sequence[int]) -> int:
        if 1 in items:
            raise RuntimeError("gone")
        return len(items)

    sender = FakeSender[int](takes)
    channel = channel_of(sender, linger=0)
    with running(channel, sender):
        for n in (1, 2):
            channel.put(n)
            assert sender.arrived.acquire(timeout=SOON)
    assert channel.counts() == SignalCounts(exported=1, failed=1)
    assert len(caplog.records) == 1


def test_several_threads_may_put(sender: FakeSender[int]) -> None:
    channel = channel_of(sender, 500, linger=0)
    with running(channel, sender):

        def emit() -> None:
            for n in range(1000):
                channel.put(n)

        threads = [threading.Thread(target=emit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(channel.counts()) == 4000
    assert channel.counts().exported == sum(map(len, sender.batches))


@pytest.mark.parametrize(("before", "meanwhile"), [(0.005, TURN), (TURN / 2, TURN / 2)])
def test_turns_get_no_longer(monkeypatch: pytest.MonkeyPatch, before: float, meanwhile: float) -> None:
    monkeypatch.setattr(sys, "getswitchinterval", lambda: before)
    found: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", found.append)
    with short_turns():
        assert gc.get_freeze_count() > 0
    assert found == [meanwhile, before]
    assert gc.get_freeze_count() == 0


def test_as_before_after_an_error() -> None:
    before = sys.getswitchinterval()
    with pytest.raises(KeyError), short_turns():
        raise KeyError
    assert sys.getswitchinterval() == before
    assert gc.get_freeze_count() == 0
