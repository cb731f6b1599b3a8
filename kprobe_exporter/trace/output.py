"""Writes to stdout: the kernel's bytes to a pipe; to a terminal with control bytes escaped."""

import codecs
import errno
import os
import stat

from kprobe_exporter.errors import StartError
from kprobe_exporter.trace.interrupt import Interrupt

PIECE = 4096
"""PIPE_BUF: a write of so many bytes does not block if poll says that the pipe has room."""

PATIENCE = 2.0
"""Seconds that a write waits for the reader after a request to stop, before the rest is dropped."""

ALWAYS = 3600.0


class Gone(Exception):
    """The reader has closed its end, or does not read in time: nothing further is written."""


class Output:
    """Writes to one descriptor; a request to stop ends the wait for a slow reader. Not thread-safe."""

    def __init__(self, descriptor: int, stop: Interrupt, *, terminal: bool) -> None:
        self.descriptor = descriptor
        self.terminal = terminal
        self.gone = False
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        mode = os.fstat(descriptor).st_mode
        self._waits = not (stat.S_ISREG(mode) or stat.S_ISBLK(mode))

    @property
    def watched(self) -> int | None:
        """The descriptor, if poll can tell that its reader has gone; None for a file."""
        return self.descriptor if self._waits else None

    def say(self, line: str) -> None:
        """Write a line of the exporter's own."""
        self.write(f"{line}\n".encode(errors="backslashreplace"))

    def write(self, data: bytes) -> None:
        """Write all bytes. Raises Gone if the reader does not take them."""
        if self.terminal:
            data = escaped(self._decoder.decode(data)).encode(errors="backslashreplace")
        self.write_raw(data)

    def write_raw(self, data: bytes) -> None:
        """The same without escaping, for the exporter's own output."""
        rest = memoryview(data)
        while rest:
            if self.gone or not self._has_room():
                self._give_up()
            try:
                rest = rest[self._write_some(rest) :]
            except (InterruptedError, BlockingIOError):
                continue
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EIO):  # EIO: the terminal was closed
                    self._give_up()
                raise StartError(f"stdout cannot be written: {error.strerror}.") from None

    def _write_some(self, rest: memoryview) -> int:
        if not self.terminal:
            return os.write(self.descriptor, rest[:PIECE] if self._waits else rest)
        with self._stop.in_write():
            return os.write(self.descriptor, rest[:PIECE])

    def _has_room(self) -> bool:
        if not self._waits:
            return True
        if not self._stop.is_set() and self._stop.wait_for_room(self.descriptor, ALWAYS):
            return True
        return not self._stop.gives_up and self._stop.wait_for_room(self.descriptor, PATIENCE)

    def _give_up(self) -> None:
        self.gone = True
        raise Gone


def escaped(text: str) -> str:
    """Escape text for a terminal: unprintable characters except tab and newline become ``\\xNN``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _code(c) for c in text)


def _code(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
