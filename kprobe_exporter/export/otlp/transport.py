"""Sends built items to the collector, and reports exactly how many of them it accepted."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kprobe_exporter.export.otlp.retry import RequestOutcome, Retries
from kprobe_exporter.export.otlp.settings import (
    MAX_REQUEST,
    OtlpSettings,
    Signal,
    check,
    collector_of,
    redaction,
    timeout_of,
)
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

QUIET = 60.0
"""Seconds between two warnings about a signal, at least."""

MAX_REASON = 300

NOISY = ("opentelemetry", "grpc", "urllib3")
"""Libraries that log every failed request, some with a traceback; ``Transport`` logs a failure once."""

Encode = Callable[[Sequence[Any]], bytes]


class Link(Protocol):
    """The way to the collector by one protocol."""

    def send(self, request: bytes, timeout: float) -> RequestOutcome: ...
    def close(self) -> None: ...


class Transport:
    """Sends batches of one signal over a link, again and again if need be.

    One thread calls ``export``; any thread may call ``stop`` and ``close``. ``encode`` makes a request of
    items, and ``size`` returns how many items they count as.
    """

    def __init__(
        self,
        signal: Signal,
        settings: OtlpSettings,
        link: Link,
        attempts: Retries,
        encode: Encode,
        size: Callable[[Sequence[Any]], int] = len,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signal = signal
        self._link = link
        self._timeout = timeout_of(signal, settings)
        self._attempts = attempts
        self._encode = encode
        self._size = size
        self._loses, self._waits = Trouble(QUIET, clock), Trouble(QUIET, clock)
        attempts.delayed = self._report_delay
        self._redact = redaction(signal, settings)
        self._collector = self._redact(collector_of(signal, settings))

    def export(self, items: Sequence[Any]) -> int:
        """Send all items; return how many of them the collector accepted.

        The items are sent in halves if they cannot be one request: one cannot be encoded, or together they
        are too large.
        """
        request = self._encoded(items)
        if request is None and len(items) > 1:
            half = len(items) // 2
            return self.export(items[:half]) + self.export(items[half:])
        answer = RequestOutcome(False, "it cannot be encoded")
        if request is not None:
            self._attempts.run(
                lambda left, empty: self._link.send(b"" if empty else request, left), self._timeout
            )
            answer = self._attempts.answer
        size = self._size(items)
        taken = max(0, size - answer.rejected) if answer.taken else 0
        lost = size - taken
        # One warning when items begin to wait and one when they begin to be lost, each at most once in QUIET
        # seconds, and a line when that ends.
        if not lost and any([self._loses.succeeded(), self._waits.succeeded()]):
            log.info("%s are taken again by the collector at %s", self._signal, self._collector)
        elif lost and self._loses.failed():
            text = "%d of %d %s were not taken by the collector at %s: %s"
            log.warning(text, lost, size, self._signal, self._collector, self._why(answer))
        return taken

    def _encoded(self, items: Sequence[Any]) -> bytes | None:
        """Return a request of the items, None if there is none that a server accepts."""
        try:
            request = self._encode(items)
        except Exception as error:
            why = self._redact(str(error))
            log.debug("%d %s cannot be encoded together: %s", len(items), self._signal, why)
            return None
        return request if len(request) <= MAX_REQUEST else None

    def _report_delay(self, answer: RequestOutcome) -> None:
        if self._waits.failed():
            text = "%s wait for the collector at %s: %s"
            log.warning(text, self._signal, self._collector, self._why(answer))

    def _why(self, answer: RequestOutcome) -> str:
        return self._redact(answer.reason)[:MAX_REASON]

    def pause(self) -> float:
        """Remaining seconds of the pause that the collector requested; 0 or less if sending is allowed."""
        return self._attempts.pause()

    def stop(self, timeout: float) -> None:
        """Allow one more attempt of each request, and no attempts at all after ``timeout`` seconds."""
        self._attempts.stop(timeout)

    def close(self) -> None:
        """Close the connection; this ends a request that is under way."""
        self._link.close()


def connect(
    signal: Signal,
    settings: OtlpSettings,
    encode: Encode,
    size: Callable[[Sequence[Any]], int] = len,
) -> Transport:
    """Create the transport of one signal. Imports only the protocol that is in use.

    Nothing is sent, so a collector that does not run yet is not an error. Raises StartError for settings that
    can never work.
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # gRPC reads this at import. Its core would otherwise write to stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # A push of metrics has all that the one before it had, so no push waits for the collector.
    attempts = Retries(0.0 if signal == "metrics" else settings.retry)
    make: Callable[[Signal, OtlpSettings], Link]
    if check(signal, settings) == "grpc":
        from kprobe_exporter.export.otlp.over_grpc import GrpcLink as make  # noqa: PLC0415
    else:
        from kprobe_exporter.export.otlp.over_http import HttpLink as make  # noqa: PLC0415
    return Transport(signal, settings, make(signal, settings), attempts, encode, size)
