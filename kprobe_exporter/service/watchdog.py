"""The thread that tells systemd that the agent is alive, as long as its vital threads make progress."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kprobe_exporter.service.sdnotify import Systemd

log = logging.getLogger(__name__)

CALM = 30.0
"""Seconds between two checks if systemd has no watchdog for the agent."""


@dataclass
class Vital:
    """A thread that the agent cannot work without.

    ``progress`` returns a number that changes whenever the thread makes progress, or None while it has
    nothing to do; it must not block. ``patience`` is how many watchdog intervals it may go without.
    """

    name: str
    progress: Callable[[], int | None]
    patience: int = 1
    _last: int | None = field(default=None, init=False)
    _looks: int = field(default=0, init=False)

    def hangs(self) -> bool:
        """Check once more. It counts checks, not seconds: a process that was suspended did not hang."""
        now = self.progress()
        self._looks = self._looks + 1 if now is not None and now == self._last else 0
        self._last = now
        return self._looks >= 2 * self.patience


class Watchdog:
    """Checks the vital threads twice per watchdog interval, until closed.

    While each makes progress, it sends WATCHDOG=1. A stalled thread stops these messages and is named in
    the status and in the log; systemd then ends the agent, 1.5 to 2 intervals after the last progress of
    a thread with the patience 1. The status is sent when it changes. The watchdog's thread owns all
    state; ``close`` may be called twice, from any other thread.
    """

    def __init__(self, systemd: Systemd, vitals: Sequence[Vital], status: Callable[[], str]) -> None:
        self._systemd = systemd
        self._vitals = vitals
        self._status = status
        self._told = ""
        self._hung = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Tell systemd that the agent is ready, and start the thread. If there is no manager, do nothing."""
        if self._systemd.listens:
            self._told = self._current()
            self._systemd.ready(self._told)
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def beat(self) -> None:
        """Check once."""
        hung = " and the ".join(vital.name for vital in self._vitals if vital.hangs())
        status = f"no progress of the {hung}" if hung else self._current()
        if hung and hung != self._hung:
            end = "" if self._systemd.watchdog is None else ": the watchdog will end this"
            log.error("the %s makes no progress%s", hung, end)
        elif self._hung and not hung:
            log.warning("the %s gets on again", self._hung)
        self._hung = hung
        if status != self._told:
            self._systemd.status(status)
            self._told = status
        if not hung and self._systemd.watchdog is not None:
            self._systemd.alive()

    def _current(self) -> str:
        try:
            return self._status()
        except Exception as error:  # a missing status text must not stop WATCHDOG=1
            log.debug("no status: %r", error)
            return self._told

    def _run(self) -> None:
        pause = CALM if self._systemd.watchdog is None else self._systemd.watchdog / 2
        while not self._closed.wait(pause):
            self.beat()
