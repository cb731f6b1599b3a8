"""Keeps the web configuration current: reads the file and the certificates again when they change.

The exporter-toolkit reads them at every request and answers none while they are invalid. Here they are
checked once a second, and the last valid configuration stays in force.
"""

import logging
import ssl
import threading
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from kprobe_exporter.errors import ConfigError, Problem
from kprobe_exporter.util.trouble import Trouble
from kprobe_exporter.web.access import WebSettings

if TYPE_CHECKING:
    from kprobe_exporter.web.config.read import Outcome

log = logging.getLogger("kprobe_exporter.web")

INTERVAL = 1.0
"""Seconds between two checks. A change that two checks in a row see alike is complete, and is read."""

RETRY = 5
"""Checks after which files that could not be read are tried again, changed or not."""

_Signatures = tuple[tuple[int, int, int, int] | None, ...]


class WebConfigReloader:
    """The last valid settings of a web configuration; without a file, the default settings.

    ``settings`` may be called from any thread. Until close(), only the thread that start() starts
    changes the settings.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the file. Raises ConfigError with all its problems."""
        self._path = path
        self._stop = threading.Event()
        self._settings = WebSettings()
        self._files: Sequence[Path] = ()
        self._held: _Signatures = ()
        self._seen: _Signatures = ()
        self._retry_in = inf  # in checks
        self._problems: Sequence[Problem] = ()
        self._trouble = Trouble()
        if path is None:
            return
        outcome, self._held = _read_still(path)
        if outcome.settings is None:
            raise ConfigError(list(outcome.problems))
        for note in outcome.notes:
            log.info("%s: %s", path, note)
        _warn(path, outcome.warnings)
        self._settings, self._files, self._seen = outcome.settings, outcome.files, self._held

    def start(self) -> None:
        """Start the thread that checks the files."""
        if self._path is not None:
            # A daemon thread that is never joined: a file system that hangs must not delay the process's end.
            threading.Thread(target=self._run, name="web-config", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                self.look()
            except Exception as error:  # the thread survives any error
                if self._trouble.failed():
                    log.exception("the web configuration cannot be watched: %s", error)
            else:
                self._trouble.succeeded()

    def settings(self) -> WebSettings:
        return self._settings

    def look(self) -> None:
        """Read the files again if they have changed, once they do not change any more."""
        now, before = tuple(map(_signature, self._files)), self._seen
        self._seen = now
        if self._path is None or now != before:  # a file may be half written
            return
        if now == self._held:
            self._retry_in -= 1
            if self._retry_in > 0:
                return
        outcome, self._held = _read_still(self._path)
        # An invalid configuration's files are checked, too: its certificate may be what is repaired next.
        self._files = outcome.files
        self._seen = self._held
        self._retry_in = RETRY if outcome.unread else inf
        problems, known, self._problems = outcome.problems, self._problems, outcome.problems
        if outcome.settings is None:
            if problems != known or not outcome.unread:
                more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
                log.error("the web configuration has changed, and the old one holds: %s%s", problems[0], more)
        elif why := next(_less_protection(self._settings, outcome.settings), None):
            because = f"{why} with a restart only"
            log.error("%s: %s; until then the old web configuration holds", self._path, because)
        else:
            self._settings = outcome.settings
            log.info("%s: read again", self._path)
            _warn(self._path, outcome.warnings)


def _warn(path: Path, warnings: Sequence[str]) -> None:
    for warning in warnings:
        log.warning("%s: %s", path, warning)


def _read_still(path: Path) -> "tuple[Outcome, _Signatures]":
    """Return the outcome, and the signatures from before reading, by which a later check sees a change."""
    # Only an agent with a web configuration needs this module. The first reading, at the start, imports it,
    # so a later reading needs no descriptor for that.
    from kprobe_exporter.web.config.read import read_web_config  # noqa: PLC0415

    signatures = tuple(map(_signature, read_web_config(path).files))
    return read_web_config(path), signatures


def _signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _less_protection(old: WebSettings, new: WebSettings) -> Iterator[str]:
    """Yield why a reload may not apply the new settings: they protect less, as a file's first half may."""
    if bool(old.tls) != bool(new.tls):
        yield "TLS ends" if old.tls else "TLS begins"
    if old.tls and new.tls:
        before, after = old.tls.context, new.tls.context
        weaker = {
            "client_auth_type": after.verify_mode < before.verify_mode,
            "client_allowed_sans": old.tls.names is not None and new.tls.names is None,
            "min_version": after.minimum_version < before.minimum_version,
            "cipher_suites": not _suites(after) <= _suites(before),
            "curve_preferences": old.tls.curve and not new.tls.curve,
        }
        yield from (f"a weaker {key} takes effect" for key, is_weaker in weaker.items() if is_weaker)
    if old.users and not new.users:
        yield "passwords end"
    if old.rate and not new.rate:
        yield "the rate limit ends"


def _suites(context: ssl.SSLContext) -> frozenset[str]:
    return frozenset(suite["name"] for suite in context.get_ciphers())
