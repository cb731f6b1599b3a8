"""A command that is traced from its first instruction to its end."""

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kprobe_exporter.errors import StartError
from kprobe_exporter.trace.output import ENDING

END_WAIT_S = 2.0
"""Seconds that a command has to end after SIGTERM, before it is left alone."""

POLL_S = 0.02

NOT_RUN = 127
"""The exit status of a command that could not be executed, as in a shell."""


class Command:
    """A child process that executes a command once ``run`` is called."""

    def __init__(self, words: Sequence[str]) -> None:
        """Start the child, which waits. Raises StartError if there is no such program."""
        self.name = shlex.join(words)
        path = shutil.which(words[0])
        if path is None:
            raise StartError(f"there is no program {words[0]!r}: give its path, or a name that PATH has.")
        read, self._write = os.pipe2(os.O_CLOEXEC)
        # The child must not run the handlers of this process, whose wake-up pipe it shares.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                os.close(self._write)
                _execute(path, words, read, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(read)
        self._status: int | None = None

    def run(self) -> None:
        """Let the command begin; later calls do nothing."""
        if self._write >= 0:
            os.write(self._write, b"\n")
            self._close()

    def has_ended(self) -> bool:
        """Whether the command has ended; its children may still run."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is not None

    def end(self) -> str:
        """Ask the command to end if it still runs, and return a sentence about its end."""
        if self._write >= 0:
            self._close()
            os.waitpid(self.pid, 0)
            return f"{self.name}: not started."
        if not self.has_ended():
            os.kill(self.pid, signal.SIGTERM)
            until = time.monotonic() + END_WAIT_S
            while not self.has_ended() and time.monotonic() < until:
                time.sleep(POLL_S)
        if self._status is None:
            return f"{self.name}: still runs, as process {self.pid}."
        if self._status < 0:
            return f"{self.name}: ended by {signal.Signals(-self._status).name}."
        return f"{self.name}: ended with status {self._status}."

    def _close(self) -> None:
        os.close(self._write)
        self._write = -1


def _execute(path: str, words: Sequence[str], read: int, mask: set[int]) -> None:
    """Become the command, in the child, once the parent writes; end without it if the parent closes."""
    try:
        signal.set_wakeup_fd(-1)
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by nohup
        for number in (*ENDING, signal.SIGPIPE, signal.SIGXFSZ):
            if number != signal.SIGHUP or not ignored:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.read(read, 1):
            os.execv(path, [*words])
    except OSError as error:
        os.write(2, f"kprobe-exporter: {path} cannot be executed: {error.strerror}.\n".encode())
    finally:
        os._exit(NOT_RUN)


@contextmanager
def started(words: Sequence[str], tell: Callable[[str], None]) -> Iterator[Command | None]:
    """Yield the command, None without words; end it on exit, and ``tell`` how it ended."""
    command = Command(words) if words else None
    try:
        yield command
    finally:
        if command is not None:
            tell(command.end())
