"""Sends built items to the collector, and reports exactly how many of them it accepted."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from kprobe_exporter.errors import StartError
from kprobe_exporter.export.otlp.retry import NotTaken, RequestOutcome, Retries
from kprobe_exporter.export.otlp.settings import OtlpSettings, Signal, check, collector_of, redaction
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

QUIET = 60.0
"""Seconds between two warnings about a signal, at least."""

MAX_REASON = 300

NOISY = ("opentelemetry", "grpc", "urllib3")
"""Libraries that log every failed request, some with a traceback; ``Transport`` logs a failure once."""


class Transport:
    """Sends batches of one signal through one exporter of the SDK.

    One thread calls ``export``; any thread may call ``stop`` and ``close``. The exporter's return value is
    ignored, because it does not show a partial rejection: ``attempts`` has the answer. ``pack`` converts a
    list of items to what the exporter takes, and ``size`` returns how many items they count as.
    """

    def __init__(
        self,
        signal: Signal,
        settings: OtlpSettings,
        exporter: Any,
        attempts: Retries,
        pack: Callable[[Sequence[Any]], Any] = list,
        size: Callable[[Sequence[Any]], int] = len,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signal = signal
        self._exporter = exporter
        self._attempts = attempts
        self._pack = pack
        self._size = size
        self._loses, self._waits = Trouble(QUIET, clock), Trouble(QUIET, clock)
        attempts.delayed = self._report_delay
        self._redact = redaction(signal, settings)
        self._collector = self._redact(collector_of(signal, settings))

    def export(self, items: Sequence[Any]) -> int:
        """Send all items, again and again if need be; return how many of them the collector accepted.

        If the SDK cannot make a request of the items, because one cannot be encoded or because together they
        are too large, they are sent in halves.
        """
        self._attempts.clear()
        try:
            self._exporter.export(self._pack(items))
        except NotTaken:
            pass
        except Exception as error:
            why = self._redact(str(error))
            log.debug("%d %s cannot be encoded together: %s", len(items), self._signal, why)
        answer = self._attempts.answer
        if answer is None and len(items) > 1:
            half = len(items) // 2
            return self.export(items[:half]) + self.export(items[half:])
        answer = answer or RequestOutcome(False, "it cannot be encoded")
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
        self._exporter.shutdown()


def connect(
    signal: Signal,
    settings: OtlpSettings,
    pack: Callable[[Sequence[Any]], Any] = list,
    size: Callable[[Sequence[Any]], int] = len,
) -> Transport:
    """Create the transport of one signal. Imports the SDK, and only the protocol that is in use.

    Nothing is sent, so a collector that does not run yet is no error. Raises StartError for settings that can
    never work.
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # gRPC reads this at import. Its core would otherwise write to stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # A push of metrics has all that the one before it had, so no push waits for the collector.
    attempts = Retries(0.0 if signal == "metrics" else settings.retry)
    make: Callable[[Signal, OtlpSettings, Retries], Any]
    if check(signal, settings) == "grpc":
        from kprobe_exporter.export.otlp.over_grpc import exporter as make  # noqa: PLC0415
    else:
        from kprobe_exporter.export.otlp.over_http import exporter as make  # noqa: PLC0415
    try:
        made = make(signal, settings, attempts)
    except StartError:
        raise
    except Exception:  # the SDK's class differs for each variable that it cannot read, and its text quotes it
        names = sorted(name for name in os.environ if name.startswith("OTEL_EXPORTER_OTLP_"))
        where = " or ".join(names) or "otlp"
        raise StartError(
            f"the OTLP exporter of {signal} cannot be set up: {where} has a value that is not allowed there."
        ) from None
    return Transport(signal, settings, made, attempts, pack, size)
