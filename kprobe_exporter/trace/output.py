"""Writes to stdout, on a terminal with control bytes escaped, and waits, until a signal ends the trace."""

import codecs
import errno
import os
import re
import select
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from kprobe_exporter.errors import StartError, one_line
from kprobe_exporter.service.shutdown import Shutdown

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

PIECE = 4096
"""PIPE_BUF: a write of so many bytes does not block if poll says that the pipe has room."""

PATIENCE = 2.0
"""Seconds that a write waits for the reader after a request to stop, before the rest is dropped."""

ALWAYS = 3600.0


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into a StartError that names a file: use it only around what writes that file."""
    try:
        yield
    except OSError as error:
        raise StartError(f"{one_line(str(path))} cannot be written: {error.strerror}.") from None


class Interrupt(Shutdown):
    """The request to stop, made by a signal; a second one sets ``gives_up``: the rest is not written.

    Only the main thread uses it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._in_write = False

    @contextmanager
    def heeded(self) -> Iterator["Interrupt"]:
        """Handle the signals inside the block, and restore the previous handlers after it.

        Signals interrupt no step but a write within ``in_write``. A SIGHUP that nohup ignores stays ignored.
        """

        def end(number: int, frame: FrameType | None) -> None:
            self.signal()
            if self._in_write:
                raise InterruptedError  # a write to a terminal stopped by Ctrl-S would block forever

        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        heeded = [number for number in ENDING if not (ignored and number == signal.SIGHUP)]
        before = {number: signal.signal(number, end) for number in heeded}
        wake_up = signal.set_wakeup_fd(self.wake_up_fd, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(wake_up)
            for number, handler in before.items():
                signal.signal(number, handler)
            for descriptor in (self._read, self.wake_up_fd):
                with suppress(OSError):
                    os.close(descriptor)

    def wait_for(self, descriptors: Iterable[int], seconds: float, watched: int | None = None) -> None:
        """Return when a descriptor can be read, on a request to stop, or after ``seconds``.

        A request to stop is also made when the reader of ``watched`` has closed its end.
        """
        if self.is_set():
            return
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        if watched is not None:
            poll.register(watched, 0)
        for descriptor, events in poll.poll(max(0, seconds * 1000)):
            if descriptor == watched and events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                self.set()

    @contextmanager
    def in_write(self) -> Iterator[None]:
        """Let signals raise InterruptedError inside the block."""
        self._in_write = True
        try:
            yield
        finally:
            self._in_write = False

    def wait_for_room(self, descriptor: int, seconds: float) -> bool:
        """Wait until ``descriptor`` takes data; False after ``seconds``, or on a new request to stop."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if not self.is_set():
            poll.register(self._read, select.POLLIN)
        return any(ready == descriptor for ready, _ in poll.poll(seconds * 1000))


class Gone(Exception):
    """The reader has closed its end, or does not read in time: nothing further is written."""


class Output:
    """Writes to one descriptor; ``stop`` ends the wait for a slow reader. Not thread-safe."""

    def __init__(self, descriptor: int, stop: Interrupt, *, terminal: bool) -> None:
        self.descriptor = descriptor
        self.terminal = terminal
        self.gone = False
        self.stop = stop
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
        with self.stop.in_write():
            return os.write(self.descriptor, rest[:PIECE])

    def _has_room(self) -> bool:
        if not self._waits:
            return True
        if not self.stop.is_set() and self.stop.wait_for_room(self.descriptor, ALWAYS):
            return True
        return not self.stop.gives_up and self.stop.wait_for_room(self.descriptor, PATIENCE)

    def _give_up(self) -> None:
        self.gone = True
        raise Gone


def escaped(text: str) -> str:
    """Escape text for a terminal: unprintable characters except tab and newline become ``\\xNN``."""
    return re.sub(r"[^\n\t]+", lambda part: one_line(part[0]), text)
