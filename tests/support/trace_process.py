"""A running `trace` for tests: a real process with stdout and stderr of its own, optionally on a terminal."""

import faulthandler
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from kprobe_exporter.cli import main
from kprobe_exporter.cli import tool as _tool  # noqa: F401 - imported once, inherited by every child
from kprobe_exporter.cli import trace as _trace  # noqa: F401 - the same
from kprobe_exporter.tracefs.ownership import MARKER
from tests.support.forked_child import ForkedChild
from tests.support.patience import eventually
from tests.support.system_calls import function

TRACEFS = Path("/sys/kernel/tracing")

SIZE = (40, 100)
"""Lines and columns of the terminal."""

START = 20
"""Seconds that several traces need at most to start at once on an idle machine."""

DEADLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


TRACING = b"Tracing kprobe mine. Ctrl-C to end.\n"

MOST = 23


class TraceProcess(ForkedChild):
    """The command line in a forked child. It is not executed, because imports are slow under emulation.

    ``stdout`` is a file, or a descriptor that the test provides. With ``terminal`` it is a pty: ``output`` is
    then all that was read from the other end. The child calls ``confine`` first.
    """

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        *,
        command: str = "trace",
        terminal: bool = False,
        stdout: int | None = None,
        confine: Callable[[], object] = lambda: None,
    ) -> None:
        self._read = b""
        # The files stay open: opening them at each look would cause events of the test in do_sys_openat2.
        self._out, self._err = (_file(directory / name) for name in ("stdout", "stderr"))
        self._master = -1
        mine = stdout if stdout is not None else self._out
        if terminal:
            self._master, mine = pty.openpty()
            fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
            os.set_blocking(self._master, False)
        # Python drops pending signals in a forked child. They stay blocked until it has its handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, set(DEADLY))
        self.pid = os.fork()
        if self.pid == 0:
            _be_it([command, *arguments], mine, self._err, confine, terminal=terminal)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if terminal:
            os.close(mine)

    @property
    def output(self) -> bytes:
        """All of stdout so far."""
        if self._master < 0:
            return _all_of(self._out)
        with suppress(BlockingIOError, OSError):  # EIO: the process has ended
            while data := os.read(self._master, 65536):
                self._read += data
        return self._read

    @property
    def errors(self) -> str:
        """All of stderr so far."""
        return _all_of(self._err).decode(errors="surrogateescape")

    def type(self, keys: bytes) -> None:
        """Type these keys on its terminal."""
        os.write(self._master, keys)

    def wait_for(self, text: bytes, seconds: float = START) -> None:
        """Wait until this text was written; AssertionError with the output if the process ends first."""

        def there() -> bool:
            ended = self.poll() is not None
            found = text in self.output
            assert found or not ended, f"ended with {self._status}"
            return found

        self._eventually(there, seconds)

    @property
    def instance(self) -> Path:
        """Its tracefs instance."""
        return TRACEFS / f"instances/kprobe_exporter_trace_{self.pid}"

    def wait_until_enabled(
        self,
        states: tuple[str, ...] = ("1\n", "1*\n"),
        tracepoints: Sequence[str] = ("sched/sched_process_exec",),
    ) -> None:
        """Wait until it records its own probes, or else ``tracepoints``: it may print nothing at its start.

        A trigger enables an event softly ("0*"), which is the only state where the kernel only counts.
        """

        def enabled() -> bool:
            assert self.poll() is None, f"ended with {self._status}"
            events = self.instance / "events"
            with suppress(OSError):
                own = events / self.instance.name
                names = [event.name for event in own.iterdir() if event.is_dir()] if own.exists() else []
                files = [own / name / "enable" for name in names if name != MARKER]
                files = files or [events / name / "enable" for name in tracepoints]
                return all(file.read_text() in states for file in files)
            return False

        self._eventually(enabled, START)

    def wait_until_tracing(self) -> None:
        """Wait until all probes of a tool are enabled, which -v says."""

        def tracing() -> bool:
            assert self.poll() is None, f"ended with {self._status}"
            return re.search(r"[0-9] probes? traced\n", self.errors) is not None

        self._eventually(tracing, START)

    def wait(self, seconds: float = 20) -> int:
        """Wait for the end and return the exit status. The terminal is read meanwhile, lest writes block."""

        def ended() -> bool:
            _ = self.output
            return self.poll() is not None

        self._eventually(ended, seconds)
        assert self._status is not None
        return self._status

    def end(self, number: int = signal.SIGINT) -> int:
        """Interrupt it as Ctrl-C does, and return its exit status."""
        self.signal(number)
        return self.wait()

    def _eventually(self, true: Callable[[], bool], seconds: float) -> None:
        try:
            eventually(true, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._state()}") from None

    def _state(self) -> str:
        """Its output so far, and the stacks of its threads."""
        self.signal(signal.SIGUSR1)
        with suppress(AssertionError):
            eventually(lambda: "most recent call first" in self.errors or self.poll() is not None, 2)
        return f"{self.output!r} {self.errors}"

    def close(self) -> None:
        """Wait for its end, and close its files."""
        try:
            self.wait()
        except AssertionError:
            self.signal(signal.SIGKILL)
            self.wait()
            raise
        finally:
            for descriptor in (self._out, self._err, self._master):
                if descriptor >= 0:
                    os.close(descriptor)


StartTrace: TypeAlias = Callable[..., TraceProcess]


@contextmanager
def traces(directory: Path) -> Iterator[StartTrace]:
    """Yield a function that starts a trace in a directory of its own. On exit, all traces are ended."""
    started: list[TraceProcess] = []

    def start(*arguments: str, **how: Any) -> TraceProcess:
        own = directory / f"trace{len(started)}"
        own.mkdir()
        started.append(TraceProcess(own, arguments, **how))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.signal(signal.SIGINT)
        for each in started:
            each.close()


def lines(trace: TraceProcess) -> list[bytes]:
    return [line for line in trace.output.splitlines() if b": mine: (" in line]


def work(times: int = MOST) -> None:
    for _ in range(times):
        os.getppid()


@cache
def getppid() -> str:
    """A probe definition of this system call by address: looking up names takes seconds under emulation."""
    symbols = Path("/proc/kallsyms").read_text()
    found = re.search(rf"^([0-9a-f]+) T {function('getppid')}$", symbols, re.MULTILINE)
    assert found
    return f"p:mine 0x{found[1]}"


def _file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)


def _all_of(descriptor: int) -> bytes:
    """All bytes of a file, read without moving its writer's file position."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _be_it(
    arguments: list[str], out: int, err: int, confine: Callable[[], object], *, terminal: bool
) -> None:
    """Run the command line as the main program of this forked child, and exit instead of returning."""
    status = 70
    try:
        if terminal:
            os.setsid()
            fcntl.ioctl(out, termios.TIOCSCTTY, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, 256)  # among them the other ends of the pipes
        faulthandler.register(signal.SIGUSR1, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        for number in DEADLY:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, set(DEADLY))
            confine()
            main(arguments, prog_name="kprobe-exporter")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except KeyboardInterrupt:  # before the command line had started
            status = 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(DEADLY))
        os._exit(status)
