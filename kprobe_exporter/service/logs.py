"""Logging to stderr, as text or JSON: one line per record, even for hostile strings of the kernel or a
user."""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

from kprobe_exporter.errors import one_line
from kprobe_exporter.service.log_limit import WINDOW, Repeats

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

MAX_LENGTH = 8192
"""Characters that are shown: the first ones of a message, the last ones of an exception's text."""

PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""The lowest log level of each syslog priority; records below all of them have priority 7 (sd-daemon(3))."""


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO tracefs.mount: …``; without the time in the journal, which has it."""

    def __init__(self, *, timed: bool = True) -> None:
        super().__init__()
        self._timed = timed

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("kprobe_exporter.")
        line = f"{record.levelname} {name}: {_message(record)}"
        if record.exc_info:
            line += " " + one_line(_exception(self, record))
        return f"{_time(record)} {line}" if self._timed else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and exception where there is one.

    The message is escaped before it becomes JSON, since a reader undoes JSON's own escapes. This also
    removes lone surrogates, which many parsers refuse. The output is ASCII: the locale may limit stderr.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if record.exc_info:
            entry["exception"] = "\n".join(map(one_line, _exception(self, record).split("\n")))
        return json.dumps(entry)


class JournalFormatter(logging.Formatter):
    """Prefixes another formatter's line with its priority, which journald removes (sd-daemon(3))."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in PRIORITIES if record.levelno >= level), 7)
        return f"<{priority}>{self._inner.format(record)}"


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class Handler(logging.StreamHandler[TextIO]):
    """Writes records and limits repetitions: at most WINDOW seconds after a flood it is summed up.

    The handler's own lock, which ``handle`` holds around ``emit``, guards all of its state. ``later`` calls
    a function after a number of seconds, in another thread.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], object] = _later,
    ) -> None:
        super().__init__(stream)
        self._clock = clock
        self._later = later
        self._repeats = Repeats()
        self._waiting = False

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        try:
            self._sum_up(now)
            shown = self._repeats.admit(record, now)
        except Exception:  # as in logging: a record that cannot be formatted must not raise
            self.handleError(record)
            return
        if shown:
            super().emit(record)
        elif not self._waiting:
            self._wait()

    def close(self) -> None:
        """Sum up the messages that were omitted. The logging module calls this when the process ends."""
        self.sum_up()
        super().close()

    def sum_up(self) -> None:
        """Write the summaries of all messages that were omitted so far."""
        self.acquire()
        try:
            self._sum_up(float("inf"))
        finally:
            self.release()

    def _look_again(self) -> None:
        self.acquire()
        try:
            self._sum_up(self._clock())
            self._waiting = False
            if self._repeats.pending:
                self._wait()
        finally:
            self.release()

    def _wait(self) -> None:
        """Look again after a window. If no thread can be started for it, the next message sums up."""
        with suppress(RuntimeError):  # logging must not make its caller fail
            self._later(WINDOW, self._look_again)
            self._waiting = True

    def _sum_up(self, now: float) -> None:
        for summary in self._repeats.due(now):
            super().emit(summary)


def set_up(level: str, form: str) -> None:
    """Send the package's log to stderr."""
    journal = is_journal(os.environ)
    formatter = JsonFormatter() if form == "json" else TextFormatter(timed=not journal)
    handler = Handler(sys.stderr)
    handler.setFormatter(JournalFormatter(formatter) if journal else formatter)
    log = logging.getLogger("kprobe_exporter")
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(level.upper())


def write_now(logger: logging.Logger, message: str) -> None:
    """Log at the level INFO from a signal's handler: without a lock, which the interrupted code may hold."""
    if not logger.isEnabledFor(logging.INFO):
        return
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, message, (), None)
    for handler in logging.getLogger("kprobe_exporter").handlers:
        if isinstance(handler, Handler):
            with suppress(OSError):
                os.write(handler.stream.fileno(), f"{handler.format(record)}\n".encode())


def sum_up() -> None:
    """Write the summaries of repeated messages now, so that the next message is the last one."""
    for handler in logging.getLogger("kprobe_exporter").handlers:
        if isinstance(handler, Handler):
            handler.sum_up()


def is_journal(environment: Mapping[str, str], descriptor: int = 2) -> bool:
    """Return whether a descriptor is the journal: JOURNAL_STREAM has its device and inode (systemd.exec(5)).

    The variable alone does not suffice: child processes inherit it, even with another stderr.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return one_line(text[:MAX_LENGTH]) + ("…" if len(text) > MAX_LENGTH else "")


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback; if it is too long, its end, which is the most useful part."""
    text = formatter.formatException(record.exc_info) if record.exc_info else ""
    return text if len(text) <= MAX_LENGTH else "…" + text[-MAX_LENGTH:]


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
