"""Logging to stderr, as text or JSON, with whatever the kernel or a user sent in escaped."""

import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def escape(text: str) -> str:
    """A line stays one line: control characters, which a process name may hold, become ``\\xNN``."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO tracefs.mount: …``"""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("kprobe_exporter.")
        line = f"{_time(record)} {record.levelname} {name}: {escape(record.getMessage())}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up(level: str, form: str) -> None:
    """Send the package's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    log = logging.getLogger("kprobe_exporter")
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(level.upper())


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
