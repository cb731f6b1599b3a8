"""The threads that send, with their counts, and the queue between the reader's thread and one of them."""

import gc
import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

BATCH = 512
"""Items of one batch, at most."""

ITEM_BYTES = 4096
"""Bytes of memory that a queue may take for each item of its capacity."""

LINGER = 1.0
"""Seconds that an item waits for its batch to fill."""

TURN = 0.0005
"""Seconds that a thread runs while others wait for the interpreter's lock, as long as items are sent."""

Item = TypeVar("Item")


class SignalCounts(NamedTuple):
    """The outcome of the items; each item is counted once.

    ``exported``: the collector accepted the item. ``dropped``: the item was never handed to the sender.
    ``failed``: it was handed over or could not be built, and the collector did not accept it.
    """

    exported: int = 0
    dropped: int = 0
    failed: int = 0

    def plus(self, exported: int = 0, dropped: int = 0, failed: int = 0) -> "SignalCounts":
        return SignalCounts(self.exported + exported, self.dropped + dropped, self.failed + failed)


class Sender(Protocol):
    """The destination of the items: a Transport."""

    def export(self, items: Sequence[Any]) -> int: ...
    def pause(self) -> float: ...
    def stop(self, timeout: float) -> None: ...
    def close(self) -> None: ...


class SendingThread(ABC):
    """A thread that sends the items of one signal, and counts the outcome of each item once.

    ``_lock`` guards the counts. It is held for a few steps, and never while items are built or sent. Any
    thread may call ``counts`` and ``close``; ``close`` may be called more than once.
    """

    def __init__(self, name: str, sender: Sender, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._sender = sender
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = SignalCounts()
        self._under_way = 0
        self._trouble = Trouble()
        self._closed = threading.Event()
        self._ended = False  # set by close(), after which only close() counts items
        self._deadline = float("inf")
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kprobe-otlp-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def counts(self) -> SignalCounts:
        """The outcome of the items so far, without those that wait or are being sent."""
        with self._lock:
            return self._counts

    def close(self, timeout: float) -> int:
        """Send what there is for at most ``timeout`` seconds; then drop the rest. Return how many were lost.

        Each batch is tried only once. A request that has no answer by then counts as failed.
        """
        with self._lock:
            if self._closed.is_set():
                return 0
            before = self._counts
            self._deadline = self._clock() + timeout
            self._closed.set()
        self._sender.stop(timeout)
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        with self._lock:
            self._ended = True
            self._counts = self._counts.plus(dropped=self._discard(), failed=self._under_way)
            lost = sum(self._counts[1:]) - sum(before[1:])
        self._sender.close()
        return lost

    @abstractmethod
    def _run(self) -> None:
        """Send until the thread is closed."""

    @abstractmethod
    def _discard(self) -> int:
        """Discard the items that wait; return their number. The caller holds the lock."""

    def _settle(self, taken: int) -> bool:
        """Count the items under way, of which the collector took some; False if ``close`` counted them."""
        with self._lock:
            if not self._ended:
                self._counts = self._counts.plus(exported=taken, failed=self._under_way - taken)
                self._under_way = 0
            return not self._ended

    def _complain(self, text: str, *values: object) -> None:
        """Log only the first error: it is a bug in the agent and may come with every item."""
        if self._trouble.failed():
            log.error(text, *values, exc_info=True)


class Channel(SendingThread, Generic[Item]):
    """Queues items of one signal without waiting, and sends them in batches from its own thread.

    ``_lock`` guards the queue too, so ``put``, which any thread may call, does not wait for a collector. Only
    the channel's own thread calls ``build``, which converts an item to what is sent, and ``arrived``, with
    each batch that was accepted in full: a collector names no rejected items. ``memory`` returns the bytes
    that an item takes in the queue, which is full with ``capacity`` items or ITEM_BYTES times as many bytes.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[Item], object],
        sender: Sender,
        capacity: int,
        linger: float = LINGER,
        arrived: Callable[[Sequence[Item]], object] = lambda _: None,
        memory: Callable[[Item], int] = lambda _: 0,
    ) -> None:
        super().__init__(name, sender)
        self._build = build
        self._capacity = capacity
        self._linger = linger
        self._arrived = arrived
        self._memory = memory
        self._queue: deque[tuple[Item, int]] = deque()
        self._bytes = 0  # of the items in the queue
        self._wanted = 1  # the length of the queue at which put() wakes the thread

    def put(self, item: Item) -> bool:
        """Queue an item. If the queue is full or the channel is closed, drop it and return False."""
        size = self._memory(item)
        with self._lock:
            waiting = len(self._queue)
            room = self._capacity * ITEM_BYTES - self._bytes
            if waiting >= self._capacity or (waiting and size > room) or self._closed.is_set():
                self._counts = self._counts.plus(dropped=1)
                return False
            self._queue.append((item, size))
            self._bytes += size
        # To set it again takes longer than all of the rest.
        if waiting + 1 >= self._wanted and not self._wake.is_set():
            self._wake.set()
        return True

    def _discard(self) -> int:
        waiting = len(self._queue)
        self._queue.clear()
        return waiting

    def _run(self) -> None:
        while self._gather():
            with self._lock:
                taken_out = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                self._bytes -= sum(size for _, size in taken_out)
                self._under_way = len(taken_out)
            batch = [item for item, _ in taken_out]
            taken = self._send(batch)
            if not self._settle(taken):
                return
            if taken == len(batch):
                self._arrived(batch)

    def _gather(self) -> bool:
        """Wait until items may be sent; False once a closed channel has no more items or no more time."""
        self._await(1, None)
        self._await(BATCH, self._linger)
        while (pause := self._sender.pause()) > 0 and not self._closed.is_set():
            self._closed.wait(pause)
        if not self._closed.is_set():
            return True
        return bool(self._queue) and self._sender.pause() <= 0 and self._clock() < self._deadline

    def _await(self, wanted: int, timeout: float | None) -> None:
        """Wait until ``wanted`` items are queued, the channel is closed, or ``timeout`` has passed."""
        self._wanted = wanted = min(wanted, self._capacity)
        self._wake.clear()
        # The queue is read after the two lines above, so that no put() is missed.
        if len(self._queue) < wanted and not self._closed.is_set():
            self._wake.wait(timeout)
        self._wanted = self._capacity + 1

    def _send(self, batch: list[Item]) -> int:
        """Send a batch; return how many items the collector accepted. The thread survives any error."""
        built = []
        for item in batch:
            try:
                built.append(self._build(item))
            except Exception as error:
                self._complain("one of the %s cannot be built: %r", self._name, error)
        try:
            return max(0, min(len(batch), self._sender.export(built))) if built else 0
        except Exception as error:
            self._complain("%d %s cannot be sent: %r", len(batch), self._name, error)
            return 0


@contextmanager
def short_turns() -> Iterator[None]:
    """Set a short switch interval and freeze all objects, for the whole process, until the context is left.

    A scrape makes about fifty system calls. After each, its thread may wait for Python's switch interval, 5
    ms, once for each thread that encodes. A full garbage collection stops all threads while it scans every
    loaded module; frozen objects are not scanned. At 10,000 exported items a second, the slowest scrape took
    125 to 190 ms without this and 60 to 90 ms with it. The processor time was the same.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, TURN))
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)
