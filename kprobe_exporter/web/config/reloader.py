"""The web configuration as it is now: the file and the certificates are read again when they change.

The exporter-toolkit reads them at every request and answers none while they are wrong; here a look a
second is enough, and what was right before goes on to hold.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kprobe_exporter.errors import ConfigError, Problem
from kprobe_exporter.web.settings import WebSettings

if TYPE_CHECKING:
    from kprobe_exporter.web.config.read import Outcome

log = logging.getLogger("kprobe_exporter.web")

INTERVAL = 1.0
"""Seconds between two looks. A change that two of them saw alike is complete, and is read."""

RETRY = 5
"""Looks after which what could not be read is tried again, changed or not."""

_Signature = tuple[tuple[int, int, int, int] | None, ...]


class WebConfigWatch:
    """The last good state of a web configuration; without a file, nothing special.

    ``settings`` may be called from any thread. The thread that start() starts is the only one that
    changes them, until close().
    """

    def __init__(self, path: Path | None) -> None:
        """Read it. Raises ConfigError with all its problems."""
        self._path = path
        self._stop = threading.Event()
        self._settings = WebSettings()
        self._files: Sequence[Path] = ()
        self._held = self._seen = _signature(())
        self._unread_since: int | None = None  # in looks
        self._problems: Sequence[Problem] = ()
        self._complained = False
        if path is not None:
            self._begin(path)

    def start(self) -> None:
        """Look at the files from now on."""
        if self._path is not None:
            # A daemon, and never joined: a file system that hangs must not hold up the end.
            threading.Thread(target=self._run, name="web-config", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                self.look()
            except Exception as error:  # whatever it is, the thread goes on
                if not self._complained:
                    log.exception("the web configuration cannot be watched: %s", error)
                self._complained = True
            else:
                self._complained = False

    def _begin(self, path: Path) -> None:
        outcome, self._held = _read_still(path)
        if outcome.settings is None:
            raise ConfigError(list(outcome.problems))
        for note in outcome.notes:
            log.info("%s: %s", path, note)
        self._settings, self._files, self._seen = outcome.settings, outcome.files, self._held

    def settings(self) -> WebSettings:
        return self._settings

    def look(self) -> None:
        """Take over what has changed, once it does not change any more."""
        now, before = _signature(self._files), self._seen
        self._seen = now
        if self._path is None or now != before:  # perhaps it is half written
            return
        if now == self._held and not self._is_to_be_tried_again():
            return
        outcome, self._held = _read_still(self._path)
        # Of a file that is wrong as well: it may be a certificate that is mended next.
        self._files = outcome.files
        self._seen = self._held
        self._unread_since = 0 if outcome.unread else None
        problems, told, self._problems = outcome.problems, self._problems, outcome.problems
        if outcome.settings is None:
            if problems != told or not outcome.unread:
                log.error("the web configuration has changed, and the old one holds: %s", _told(problems))
        elif why := _needs_restart(self._settings, outcome.settings):
            log.error("%s: %s; until then the old web configuration holds", self._path, why)
        else:
            self._settings = outcome.settings
            log.info("%s: read again", self._path)

    def _is_to_be_tried_again(self) -> bool:
        if self._unread_since is None:
            return False
        self._unread_since += 1
        return self._unread_since >= RETRY


def _read_still(path: Path) -> "tuple[Outcome, _Signature]":
    """What is read, and the signature of just before, so that a change meanwhile shows at the next look."""
    # Only a start with a web configuration needs this module. The start is the first to read the file: a
    # later reading finds the module imported and needs no further descriptor.
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
    if old.tls and not new.tls:
        return "TLS ends with a restart only"
    if new.tls and not old.tls:
        return "TLS begins with a restart only"
    if old.users and not new.users:
        # A file that is cut short must not open the door.
        return "passwords end with a restart only"
    return None


def _told(problems: Sequence[Problem]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}"
