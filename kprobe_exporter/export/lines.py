"""Writes exported events as lines of JSON: to stdout, to a file that is rotated by size, or to syslog."""

import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from kprobe_exporter.errors import one_line
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

STDOUT, SYSLOG = "stdout", "syslog"
"""Destinations that are not files."""

SOCKET = "/dev/log"
"""The socket of the local syslog (syslog(3)): rsyslog's, or journald's."""

PRIORITY = b"<134>"  # LOG_LOCAL0 | LOG_INFO
LONGEST_MESSAGE = 8192
"""Bytes of a message. rsyslog drops the rest of longer ones; such an event is cut, and so no JSON."""

MODE = 0o640
QUIET = 60.0
"""Seconds between two warnings, at least."""


class Destination(NamedTuple):
    """The destination of lines: STDOUT, SYSLOG, or a file's path.

    A file of ``max_size`` bytes is renamed to ``PATH.1``, and ``files`` older ones are kept.
    """

    to: str
    max_size: int
    files: int


class LineTarget(Protocol):
    """A destination of lines, each with its line end. Its methods raise OSError."""

    def write(self, lines: Sequence[bytes]) -> None: ...
    def close(self) -> None: ...


class LineWriter:
    """The sender of a channel whose items are lines. One thread calls ``export``."""

    def __init__(
        self, destination: Destination, make: Callable[[Destination], LineTarget] | None = None
    ) -> None:
        self._name = one_line(destination.to)
        self._target = (make or _target)(destination)
        self._trouble = Trouble(QUIET)

    def export(self, items: Sequence[bytes]) -> int:
        """Write the lines; return how many of them were written: all, or none after an error."""
        try:
            self._target.write(items)
        except OSError as error:
            if self._trouble.failed():
                log.warning("events are lost: %s cannot be written: %s", self._name, error.strerror)
            return 0
        if self._trouble.succeeded():
            log.info("events are written to %s again", self._name)
        return len(items)

    def pause(self) -> float:
        return 0.0

    def stop(self, timeout: float) -> None:
        """Nothing is repeated, so there is nothing to stop."""

    def close(self) -> None:
        with suppress(OSError):
            self._target.close()


class RotatedFile:
    """Appends lines to a file.

    Before each write it opens the file again if another program, as logrotate, has renamed or removed it.
    """

    def __init__(self, destination: Destination) -> None:
        self._path, self._max_size, self._files = Path(destination.to), *destination[1:]
        self._file = -1

    def write(self, lines: Sequence[bytes]) -> None:
        """Append the lines; a file with a part of a line may be left if there is no room."""
        data = b"".join(lines)
        status = self._opened()
        if status.st_size and status.st_size + len(data) > self._max_size:
            self._rotate()
            self._opened()
        _write_all(self._file, data)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _opened(self) -> os.stat_result:
        """Have the file of this path open; return its status."""
        if self._file >= 0:
            status = os.fstat(self._file)
            with suppress(FileNotFoundError):
                there = self._path.lstat()
                if (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino):
                    return status
            self.close()
        # A link that another user put there would lead the events into any file.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        self._file = os.open(self._path, flags, MODE)
        return os.fstat(self._file)

    def _rotate(self) -> None:
        """Rename the files: the oldest one is replaced."""
        self.close()
        numbered = [self._path.with_name(f"{self._path.name}.{n + 1}") for n in range(self._files)]
        for newer, older in reversed([*pairwise([self._path, *numbered])]):
            with suppress(FileNotFoundError):
                newer.replace(older)


class _Stdout:
    def __init__(self, destination: Destination) -> None:
        pass

    def write(self, lines: Sequence[bytes]) -> None:
        _write_all(1, b"".join(lines))

    def close(self) -> None:
        """Leave stdout open."""


class _Syslog:
    """Sends each line as a message to the local syslog, and connects again after an error."""

    def __init__(self, destination: Destination) -> None:
        self._socket: socket.socket | None = None

    def write(self, lines: Sequence[bytes]) -> None:
        """Send the lines. Raises OSError at the first that is not taken."""
        if self._socket is None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                made.connect(SOCKET)
            except OSError:
                made.close()
                raise
            self._socket = made
        head = b"%skprobe_exporter[%d]: " % (PRIORITY, os.getpid())
        try:
            for line in lines:
                self._socket.send((head + line.rstrip(b"\n"))[:LONGEST_MESSAGE])
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _target(destination: Destination) -> LineTarget:
    kinds: dict[str, Callable[[Destination], LineTarget]] = {STDOUT: _Stdout, SYSLOG: _Syslog}
    return kinds.get(destination.to, RotatedFile)(destination)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
