"""A child process with a name, a log, limits and a certain end.

Its output appears line by line, after the name and the seconds so far, so that several can run side by side.
It leads a session of its own, and only that process group is signalled.
"""

import math
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

QUIET = 20.0  # seconds without output after which a line says that it still runs
GRACE = 30.0  # seconds for a process to end by itself after its output, and again after SIGTERM
PROGRESS = re.compile(rb" (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b")  # a line of `pytest --verbose`


@dataclass(frozen=True)
class Ended:
    """`status` is the exit status, or None if a limit or `stop` ended the process."""

    status: int | None
    seconds: float


@dataclass
class Child:
    """A process that runs once. `stop` may be set by any thread, and ends the process and its children.

    `timeout` bounds the whole run in seconds. `stall` bounds the seconds in which no test of pytest ends: a
    slow machine makes progress, but a process that hangs is ended long before `timeout`.
    """

    name: str
    command: Sequence[str | Path]
    log: Path
    timeout: float
    environment: dict[str, str]
    stop: threading.Event
    quiet: float = QUIET
    stall: float = math.inf

    def run(self, announcement: str = "starting") -> Ended:
        """Run the process, and return when it has ended or was ended."""
        self._started = self._heard = self._progressed = time.monotonic()
        self.say(announcement)
        with (
            self.log.open("wb") as log,
            subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            ) as process,
        ):
            assert process.stdout is not None
            finished = False
            try:
                finished = self._follow(process.stdout.fileno(), log.fileno())
            finally:
                # Until wait() the process' id, and so its group's, cannot be reused.
                if not finished or not _gone(process.pid, GRACE):
                    _signal_group(process.pid, signal.SIGTERM)
                    _gone(process.pid, GRACE)
                _signal_group(process.pid, signal.SIGKILL)
                process.wait()
        return Ended(process.returncode if finished else None, time.monotonic() - self._started)

    def say(self, line: str) -> None:
        """Print one line of this class's or of the child's output."""
        # One write: print() would write the newline separately, and another thread could write in between.
        text = f"[{self.name} {time.monotonic() - self._started:4.0f}s] {line}\n"
        print(text, end="", flush=True)

    def _follow(self, output: int, log: int) -> bool:
        """Copy the output to its end (True), or until a limit or `stop` (False)."""
        pending = b""
        while not self.stop.is_set():
            now = time.monotonic()
            if now - self._started > self.timeout:
                self.say(f"not finished after {self.timeout:.0f} s: ended")
                return False
            if now - self._progressed > self.stall:
                self.say(f"no test has ended for {self.stall:.0f} s: ended")
                return False
            if not select.select([output], [], [], 0.5)[0]:
                if now - self._heard > self.quiet:
                    self._heard = now
                    self.say("…")
                continue
            chunk = os.read(output, 65536)
            os.write(log, chunk)
            *lines, pending = (pending + chunk).split(b"\n")
            if not chunk and pending:
                lines = [pending]
            for line in lines:
                self._heard = now
                if PROGRESS.search(line):
                    self._progressed = now
                self.say(line.decode(errors="replace").rstrip("\r"))
            if not chunk:
                return True
        return False


def _gone(pid: int, patience: float) -> bool:
    """Whether the process ends within `patience` seconds. It is not reaped."""
    limit = time.monotonic() + patience
    while time.monotonic() < limit:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return True
        time.sleep(0.05)
    return False


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return  # the group is empty
