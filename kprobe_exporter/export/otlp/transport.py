"""Handing what was built to the collector, and telling truthfully how much of it was taken."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from kprobe_exporter.errors import StartError
from kprobe_exporter.export.otlp.attempts import Answer, Attempts, NotTaken
from kprobe_exporter.export.otlp.settings import Settings, Signal, check, protocol_of

log = logging.getLogger(__name__)

QUIET = 60.0
"""Seconds from one complaint about a signal to the next."""

MAX_REASON = 300

UNENCODABLE = Answer(False, "it cannot be encoded")

NOISY = ("opentelemetry", "grpc", "urllib3")
"""Libraries that log every request that fails, some with a traceback; we say it once."""


class Transport:
    """Sends batches of one signal through one exporter of the SDK.

    One thread calls ``export``; ``stop`` and ``close`` may be called from any. What the exporter
    returns is not looked at, for it is the same whether a part was rejected: ``attempts`` knows.
    ``pack`` makes what the exporter takes of a list of items, and ``size`` what they count for.
    """

    def __init__(
        self,
        signal: Signal,
        exporter: Any,
        attempts: Attempts,
        pack: Callable[[Sequence[Any]], Any] = list,
        size: Callable[[Sequence[Any]], int] = len,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.signal = signal
        self._exporter = exporter
        self._attempts = attempts
        self._pack = pack
        self._size = size
        self._clock = clock
        self._troubled = False
        self._complained = float("-inf")

    def export(self, items: Sequence[Any]) -> int:
        """Send them all, within the timeout; how many of them the collector took.

        Where the SDK could make no request of them, because of one that cannot be encoded or because
        they are too large together, they are sent by halves.
        """
        self._attempts.clear()
        try:
            self._exporter.export(self._pack(items))
        except NotTaken:
            pass
        except Exception as error:
            log.debug("%d %s cannot be encoded together: %s", len(items), self.signal, error)
        answer = self._attempts.answer
        if answer is None and len(items) > 1:
            half = len(items) // 2
            return self.export(items[:half]) + self.export(items[half:])
        answer = answer or UNENCODABLE
        size = self._size(items)
        taken = max(0, size - answer.rejected) if answer.taken else 0
        self._tell(answer.reason, size, size - taken)
        return taken

    def pause(self) -> float:
        """Seconds for which the collector asked to be left alone; 0 or less if it may be sent to."""
        return self._attempts.pause()

    def stop(self, timeout: float) -> None:
        """Try nothing twice from now on, and nothing at all after ``timeout`` seconds."""
        self._attempts.stop(timeout)

    def close(self) -> None:
        """Close the connection; over gRPC that ends a request that is under way."""
        self._exporter.shutdown()

    def _tell(self, reason: str, size: int, lost: int) -> None:
        """One line when it begins to fail and one when it is over, and at most one a minute."""
        if not lost:
            if self._troubled:
                log.info("%s are taken again by the collector", self.signal)
            self._troubled = False
        elif not self._troubled and self._clock() - self._complained >= QUIET:
            log.warning("%d of %d %s were not taken: %s", lost, size, self.signal, reason[:MAX_REASON])
            self._troubled = True
            self._complained = self._clock()


def connect(
    signal: Signal,
    settings: Settings,
    pack: Callable[[Sequence[Any]], Any] = list,
    size: Callable[[Sequence[Any]], int] = len,
) -> Transport:
    """The way to the collector for one signal. Imports the SDK, and of the protocols the one in use.

    Nothing is sent: a collector that is not there yet is no error. Raises StartError for settings that
    can never work.
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Read when gRPC is imported: its core writes to stderr by itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    check(signal, settings)
    attempts = Attempts()
    make: Callable[[Signal, Settings, Attempts], Any]
    if protocol_of(signal, settings) == "grpc":
        from kprobe_exporter.export.otlp.over_grpc import exporter as make  # noqa: PLC0415
    else:
        from kprobe_exporter.export.otlp.over_http import exporter as make  # noqa: PLC0415
    try:
        made = make(signal, settings, attempts)
    except Exception as error:  # the SDK has a class of its own for each variable that it cannot read
        raise StartError(f"the OTLP exporter of {signal} cannot be set up: {error}.") from error
    return Transport(signal, made, attempts, pack, size)
