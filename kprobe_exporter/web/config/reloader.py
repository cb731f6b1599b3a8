"""Keeps the web configuration current: reads the file and the certificates again when they change.

The exporter-toolkit reads them at every request and answers none while they are invalid. Here they are
checked once a second, and the last valid configuration stays in force.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kprobe_exporter.errors import ConfigError, Problem
from kprobe_exporter.util.trouble import Trouble
from kprobe_exporter.web.settings import Tls, WebSettings

if TYPE_CHECKING:
    from kprobe_exporter.web.config.read import Outcome

log = logging.getLogger("kprobe_exporter.web")

INTERVAL = 1.0
"""Seconds between two checks. A change that two checks in a row see alike is complete, and is read."""

RETRY = 5
"""Checks after which files that could not be read are tried again, changed or not."""

_Signature = tuple[tuple[int, int, int, int] | None, ...]


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
        self._held = self._seen = _signature(())
        self._unread_since: int | None = None  # in checks
        self._problems: Sequence[Problem] = ()
        self._trouble = Trouble()
        if path is not None:
            self._begin(path)

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

    def _begin(self, path: Path) -> None:
        outcome, self._held = _read_still(path)
        if outcome.settings is None:
            raise ConfigError(list(outcome.problems))
        for note in outcome.notes:
            log.info("%s: %s", path, note)
        _warn(path, outcome.warnings)
        self._settings, self._files, self._seen = outcome.settings, outcome.files, self._held

    def settings(self) -> WebSettings:
        return self._settings

    def look(self) -> None:
        """Read the files again if they have changed, once they do not change any more."""
        now, before = _signature(self._files), self._seen
        self._seen = now
        if self._path is None or now != before:  # a file may be half written
            return
        if now == self._held and not self._is_to_be_tried_again():
            return
        outcome, self._held = _read_still(self._path)
        # An invalid configuration's files are checked, too: its certificate may be what is repaired next.
        self._files = outcome.files
        self._seen = self._held
        self._unread_since = 0 if outcome.unread else None
        problems, known, self._problems = outcome.problems, self._problems, outcome.problems
        if outcome.settings is None:
            if problems != known or not outcome.unread:
                log.error("the web configuration has changed, and the old one holds: %s", _told(problems))
        elif why := _needs_restart(self._settings, outcome.settings):
            log.error("%s: %s; until then the old web configuration holds", self._path, why)
        else:
            self._settings = outcome.settings
            log.info("%s: read again", self._path)
            _warn(self._path, outcome.warnings)

    def _is_to_be_tried_again(self) -> bool:
        if self._unread_since is None:
            return False
        self._unread_since += 1
        return self._unread_since >= RETRY


def _warn(path: Path, warnings: Sequence[str]) -> None:
    for warning in warnings:
        log.warning("%s: %s", path, warning)


def _read_still(path: Path) -> "tuple[Outcome, _Signature]":
    """Return the outcome, and the signature from before reading, by which a later check sees a change."""
    # Only an agent with a web configuration needs this module. The first reading, at the start, imports it,
    # so a later reading needs no descriptor for that.
    from kprobe_exporter.web.config.read import read_web_config  # noqa: PLC0415

    signature = _signature(read_web_config(path).files)
    return read_web_config(path), signature


def _signature(files: Sequence[Path]) -> _Signature:
    return tuple(map(_signature_of, files))


def _signature_of(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _needs_restart(old: WebSettings, new: WebSettings) -> str | None:
    """Return why a reload may not apply the new settings: they protect less, as a file's first half may."""
    if old.tls and not new.tls:
        return "TLS ends with a restart only"
    if new.tls and not old.tls:
        return "TLS begins with a restart only"
    if old.tls and new.tls and (setting := _weakened(old.tls, new.tls)):
        return f"a weaker {setting} takes effect with a restart only"
    if old.users and not new.users:
        return "passwords end with a restart only"
    if old.rate and not new.rate:
        return "the rate limit ends with a restart only"
    return None


def _weakened(old: Tls, new: Tls) -> str | None:
    """Return the key of the first setting that demands less of clients than before."""
    if new.context.verify_mode < old.context.verify_mode:
        return "client_auth_type"
    if old.names is not None and new.names is None:
        return "client_allowed_sans"
    if new.context.minimum_version < old.context.minimum_version:
        return "min_version"
    if not _suites(new) <= _suites(old):
        return "cipher_suites"
    if old.curve and not new.curve:
        return "curve_preferences"
    return None


def _suites(tls: Tls) -> frozenset[str]:
    return frozenset(suite["name"] for suite in tls.context.get_ciphers())


def _told(problems: Sequence[Problem]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}"
