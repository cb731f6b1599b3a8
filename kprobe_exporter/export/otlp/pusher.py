"""The thread that pushes the metrics at a fixed interval."""

import logging
import threading
import time
from collections.abc import Callable

from opentelemetry.sdk.metrics.export import Metric

from kprobe_exporter.export.otlp.channel import Sender, SignalCounts
from kprobe_exporter.export.otlp.metrics import Conversion, batches, size
from kprobe_exporter.model.values import Snapshot
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

POINTS = 500
"""Data points of one request: even at 8 KiB each, gRPC servers accept the request."""


class Pusher:
    """Sends a snapshot every ``interval`` seconds, and a last one when it is closed.

    ``_lock`` guards the counts and is never held during a request. Any thread may call ``counts`` and
    ``close``; ``close`` may be called more than once. The counts are of data points. Data points that are not
    sent by the time of the next push are dropped, since the next push contains all of them again.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        sender: Sender,
        interval: float,
        conversion: Conversion,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot = snapshot
        self._sender = sender
        self._interval = interval
        self._conversion = conversion
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = SignalCounts()
        self._under_way = self._waiting = 0
        self._closed = threading.Event()
        self._ended = False
        self._deadline = float("inf")
        self._trouble = Trouble()
        self._thread = threading.Thread(target=self._run, name="kprobe-otlp-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def counts(self) -> SignalCounts:
        """The outcome of the data points so far."""
        with self._lock:
            return self._counts

    def close(self, timeout: float) -> None:
        """Push once more, for at most ``timeout`` seconds. The sources of ``snapshot`` must still run."""
        with self._lock:
            if self._closed.is_set():
                return
            self._deadline = self._clock() + timeout
            self._closed.set()
        self._sender.stop(timeout)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        with self._lock:
            self._ended = True
            self._count(dropped=self._waiting, failed=self._under_way)
        self._sender.close()

    def _run(self) -> None:
        last = False
        # Once _ended is set, the sources of the snapshot may be gone.
        while not (last or self._ended):
            last = self._closed.wait(self._interval)
            try:
                self._push()
            except Exception as error:  # the next push may succeed
                self._complain(error)

    def _push(self) -> None:
        next_push = self._clock() + self._interval
        metrics = self._conversion.metrics(self._snapshot())
        with self._lock:
            if not self._ended:
                self._waiting = size(metrics)
        for batch in batches(metrics, POINTS):
            in_time = self._clock() < min(next_push, self._deadline)
            self._send(batch, in_time=in_time and self._sender.pause() <= 0)

    def _send(self, batch: list[Metric], *, in_time: bool) -> None:
        points = size(batch)
        with self._lock:
            if self._ended:
                return
            self._waiting -= points
            if not in_time:
                self._count(dropped=points)
                return
            self._under_way = points
        taken = 0
        try:
            taken = max(0, min(points, self._sender.export(batch)))
        except Exception as error:
            self._complain(error)
        with self._lock:
            if not self._ended:
                self._under_way = 0
                self._count(exported=taken, failed=points - taken)

    def _complain(self, error: Exception) -> None:
        """Log only the first error: it is a bug in the agent and comes with every push."""
        if not self._ended and self._trouble.failed():
            log.error("the metrics cannot be pushed: %r", error, exc_info=True)

    def _count(self, exported: int = 0, dropped: int = 0, failed: int = 0) -> None:
        """Add to the counts. The caller holds the lock."""
        self._counts = self._counts.plus(exported, dropped, failed)
