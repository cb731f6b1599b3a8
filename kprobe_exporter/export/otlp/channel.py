"""The queue between the reader's thread and the collector, one a signal, and the thread that empties it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

log = logging.getLogger(__name__)

BATCH = 512
"""Items that are sent at once."""

LINGER = 1.0
"""Seconds that an item waits for others to be sent with."""

Item = TypeVar("Item")


class Counts(NamedTuple):
    """What became of the items: each is counted once.

    ``exported``: the collector took it. ``dropped``: it was never handed over. ``failed``: it was, or
    nothing could be made of it, and the collector did not take it.
    """

    exported: int = 0
    dropped: int = 0
    failed: int = 0

    def plus(self, exported: int = 0, dropped: int = 0, failed: int = 0) -> "Counts":
        return Counts(self.exported + exported, self.dropped + dropped, self.failed + failed)


class Sender(Protocol):
    """Where the items go: a Transport."""

    def export(self, items: Sequence[Any]) -> int: ...
    def pause(self) -> float: ...
    def stop(self, timeout: float) -> None: ...
    def close(self) -> None: ...


class Channel(Generic[Item]):
    """Takes items of one signal at once, and sends them in batches from a thread of its own.

    ``_lock`` guards the queue and the counts; it is held for a few steps, never while something is
    built or sent, so that ``put`` does not wait for a collector. ``put`` and ``counts`` may be called
    from any thread; ``close`` too, more than once. Its own thread alone calls ``build`` and ``arrived``.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[list[Item]], Sequence[Any]],
        sender: Sender,
        capacity: int,
        linger: float = LINGER,
        arrived: Callable[[Sequence[Item]], object] = lambda _: None,
    ) -> None:
        """``build`` makes what is sent, one thing an item; what cannot be built it leaves out.

        ``arrived`` is told of each batch of which the collector took all: it does not say which it rejects.
        """
        self._name = name
        self._build = build
        self._sender = sender
        self._capacity = capacity
        self._linger = linger
        self._arrived = arrived
        self._lock = threading.Lock()
        self._queue: deque[Item] = deque()
        self._counts = Counts()
        self._under_way = 0
        self._complained = False
        self._closed = threading.Event()
        self._ended = False  # nothing counts any more but what close() counts
        self._deadline = float("inf")
        self._wanted = 1  # how many items have to be there for the thread to be woken
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kprobe-otlp-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Item) -> bool:
        """Queue it; False if there is no room, or no more sending, and so it is dropped."""
        with self._lock:
            waiting = len(self._queue)
            if waiting >= self._capacity or self._closed.is_set():
                self._count(dropped=1)
                return False
            self._queue.append(item)
        if waiting + 1 >= self._wanted:
            self._wake.set()
        return True

    def counts(self) -> Counts:
        """What became of the items so far; those that wait or are under way are in none of the numbers."""
        with self._lock:
            return self._counts

    def close(self, timeout: float) -> None:
        """Send what waits, for ``timeout`` seconds at the most; what is left then is dropped.

        Each batch is tried once only. A request that is still without an answer counts as failed.
        """
        with self._lock:
            if self._closed.is_set():
                return
            self._deadline = time.monotonic() + timeout
            self._closed.set()
        self._sender.stop(timeout)
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        with self._lock:
            self._ended = True
            self._count(dropped=len(self._queue), failed=self._under_way)
            self._queue.clear()
        self._sender.close()

    def _run(self) -> None:
        while self._gather():
            with self._lock:
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                self._under_way = len(batch)
            taken = self._send(batch)
            with self._lock:
                if self._ended:
                    return
                self._under_way = 0
                self._count(exported=taken, failed=len(batch) - taken)
            if taken == len(batch):
                self._arrived(batch)

    def _gather(self) -> bool:
        """Wait until there is something to send, and it may be sent. False when that is over."""
        self._await(1, None)
        self._await(BATCH, self._linger)
        while (pause := self._sender.pause()) > 0 and not self._closed.is_set():
            self._closed.wait(pause)
        if not self._closed.is_set():
            return True
        return bool(self._queue) and self._sender.pause() <= 0 and time.monotonic() < self._deadline

    def _await(self, wanted: int, timeout: float | None) -> None:
        """Wait until so many items are there, or the channel is closed."""
        wanted = min(wanted, self._capacity)
        self._wanted = wanted
        self._wake.clear()
        # Looked at after the two lines above, so that no put() goes unnoticed.
        if len(self._queue) < wanted and not self._closed.is_set():
            self._wake.wait(timeout)
        self._wanted = self._capacity + 1

    def _send(self, batch: list[Item]) -> int:
        """How many of them were taken."""
        built = self._made(batch)
        try:
            return max(0, min(len(batch), self._sender.export(built))) if built else 0
        except Exception as error:  # whatever it is, the thread goes on
            self._complain("%d %s cannot be sent: %r", len(batch), self._name, error)
            return 0

    def _made(self, batch: list[Item]) -> Sequence[Any]:
        """What is to be sent; one item of which nothing can be made costs no other."""
        try:
            return self._build(batch)
        except Exception as error:
            if len(batch) == 1:
                self._complain("one of the %s cannot be built: %r", self._name, error)
                return ()
            return [made for item in batch for made in self._made([item])]

    def _complain(self, text: str, *values: object) -> None:
        """Once: it is our own mistake, and may come with every item."""
        if not self._complained:
            log.error(text, *values, exc_info=True)
        self._complained = True

    def _count(self, exported: int = 0, dropped: int = 0, failed: int = 0) -> None:
        """Under the lock."""
        self._counts = self._counts.plus(exported, dropped, failed)
