"""The thread that pushes the metrics at a fixed interval."""

import logging
import time
from collections.abc import Callable

from opentelemetry.sdk.metrics.export import Metric

from kprobe_exporter.export.otlp.channel import Sender, SendingThread
from kprobe_exporter.export.otlp.metrics import Conversion, batches, size
from kprobe_exporter.model.values import Snapshot

log = logging.getLogger(__name__)

POINTS = 500
"""Data points of one request: even at 8 KiB each, gRPC servers accept the request."""


class Pusher(SendingThread):
    """Sends a snapshot every ``interval`` seconds, and a last one when it is closed.

    The sources of ``snapshot`` must still run then. The counts are of data points. Data points that are not
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
        super().__init__("metrics", sender, clock)
        self._snapshot = snapshot
        self._interval = interval
        self._conversion = conversion
        self._waiting = 0

    def _discard(self) -> int:
        return self._waiting

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
                self._counts = self._counts.plus(dropped=points)
                return
            self._under_way = points
        taken = 0
        try:
            taken = max(0, min(points, self._sender.export(batch)))
        except Exception as error:
            self._complain(error)
        self._settle(taken)

    def _complain(self, error: Exception) -> None:
        """Log only the first error: it is a bug in the agent and comes with every push."""
        if not self._ended and self._trouble.failed():
            log.error("the metrics cannot be pushed: %r", error, exc_info=True)
