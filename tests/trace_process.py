"""A running `trace`, for tests: a real process with its own stdout and stderr, perhaps on a terminal."""

import faulthandler
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.cli import main
from kprobe_exporter.cli import trace as _trace  # noqa: F401 - imported once, inherited by every child
from tests.agent_process import eventually

SIZE = (40, 100)
"""Lines and columns of the terminal."""


class TraceProcess:
    """The command line in a child that is forked, not executed: imports are slow under emulation.

    ``stdout`` is a file, or with ``terminal`` the other end of a pty, of which ``output`` has all that
    came so far; or a descriptor of the test's own.
    """

    def __init__(
        self, directory: Path, arguments: Sequence[str], *, terminal: bool = False, stdout: int | None = None
    ) -> None:
        self._status: int | None = None
        self._read = b""
        self._out, self._err = directory / "stdout", directory / "stderr"
        self._master = -1
        for path in (self._out, self._err):
            path.write_bytes(b"")
        mine = stdout
        if terminal:
            self._master, mine = pty.openpty()
            fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
            os.set_blocking(self._master, False)
        self.pid = os.fork()
        if self.pid == 0:
            _be_it(list(arguments), self._out, self._err, mine, terminal=terminal)
        if terminal and mine is not None:
            os.close(mine)

    @property
    def output(self) -> bytes:
        """All of stdout so far."""
        if self._master < 0:
            return self._out.read_bytes()
        with suppress(BlockingIOError, OSError):  # EIO: it has ended
            while data := os.read(self._master, 65536):
                self._read += data
        return self._read

    @property
    def errors(self) -> str:
        """All of stderr so far."""
        return self._err.read_text(errors="surrogateescape")

    def type(self, keys: bytes) -> None:
        """On its terminal."""
        os.write(self._master, keys)

    def wait_for(self, text: bytes, timeout: float = 60) -> None:
        """Wait until this was written; AssertionError with all that was if it ends instead."""

        def there() -> bool:
            ended = self.poll() is not None
            found = text in self.output
            assert found or not ended, f"ended with {self._status}: {self.output!r} {self.errors}"
            return found

        eventually(there, timeout)

    def poll(self) -> int | None:
        """Its exit status if it has ended; -N if by signal N."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait(self, timeout: float = 60) -> int:
        """Its exit status. What it writes to a terminal is read meanwhile, or it would wait for ever."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill(signal.SIGUSR1)
                time.sleep(1)
                raise AssertionError(f"still there: {self.output!r} {self.errors}")
            _ = self.output
            time.sleep(0.02)
        assert self._status is not None
        return self._status

    def kill(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self, number: int = signal.SIGINT) -> int:
        """As Ctrl-C does, then its exit status."""
        self.kill(number)
        return self.wait()

    def close(self) -> None:
        """At the latest now it ends."""
        try:
            if self.poll() is None:
                self.end()
        except AssertionError:
            self.kill(signal.SIGKILL)
            self.wait()
            raise
        finally:
            if self._master >= 0:
                os.close(self._master)


def _be_it(arguments: list[str], out: Path, err: Path, mine: int | None, *, terminal: bool) -> None:
    """Run the command line as a process of its own would, and never come back."""
    status = 70
    try:
        if terminal and mine is not None:
            os.setsid()
            fcntl.ioctl(mine, termios.TIOCSCTTY, 0)
        os.dup2(mine if mine is not None else os.open(out, os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_APPEND), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, 256)  # such as the other end of its pipe
        faulthandler.register(signal.SIGUSR1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            main(["trace", *arguments], prog_name="kprobe-exporter")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
