"""The thread that tells systemd that the agent is alive, as long as its vital threads make progress."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kprobe_exporter.service.sdnotify import Systemd

log = logging.getLogger(__name__)

CALM = 30.0
"""Seconds between two checks if systemd has no watchdog for the agent."""


class Vital(NamedTuple):
    """A thread that the agent cannot work without.

    ``progress`` returns a number that changes whenever the thread makes progress, or None while it has
    nothing to do; it must not block. ``patience`` is how many watchdog intervals it may go without.
    """

    name: str
    progress: Callable[[], int | None]
    patience: int = 1


class _Watched:
    """A vital thread, and the number of checks since its last progress. The watchdog's thread owns it."""

    def __init__(self, vital: Vital) -> None:
        self.name = vital.name
        self._vital = vital
        self._last: int | None = None
        self._looks = 0

    def hangs(self) -> bool:
        """Check once more. It counts checks, not seconds: a process that was suspended did not hang."""
        now = self._vital.progress()
        self._looks = self._looks + 1 if now is not None and now == self._last else 0
        self._last = now
        return self._looks >= 2 * self._vital.patience


class Watchdog:
    """Checks the vital threads twice per watchdog interval, until closed.

    While each makes progress, it sends WATCHDOG=1. A stalled thread stops these messages and is named in
    the status and in the log; systemd then ends the agent, 1.5 to 2 intervals after the last progress of
    a thread with the patience 1. The status is sent when it changes. The watchdog's thread owns all
    state; ``close`` may be called twice, from any other thread.
    """

    def __init__(self, systemd: Systemd, vitals: Sequence[Vital], status: Callable[[], str]) -> None:
        self._systemd = systemd
        self._watched = [_Watched(vital) for vital in vitals]
        self._status = status
        self._told = ""
        self._hung: tuple[str, ...] = ()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Tell systemd that the agent is ready, and start the thread. Without a manager, do nothing."""
        if self._systemd.listens:
            self._told = self._current()
            self._systemd.ready(self._told)
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def beat(self) -> None:
        """Check once. The thread calls it, and tests do without a thread."""
        hung = tuple(watched.name for watched in self._watched if watched.hangs())
        status = f"no progress of the {' and the '.join(hung)}" if hung else self._current()
        if hung != self._hung:
            self._tell(hung)
            self._hung = hung
        if status != self._told:
            self._systemd.status(status)
            self._told = status
        if not hung and self._systemd.watchdog is not None:
            self._systemd.alive()

    def _tell(self, hung: tuple[str, ...]) -> None:
        if not hung:
            log.warning("the %s gets on again", " and the ".join(self._hung))
        elif self._systemd.watchdog is None:
            log.error("the %s makes no progress", " and the ".join(hung))
        else:
            log.error("the %s makes no progress: the watchdog will end this", " and the ".join(hung))

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
