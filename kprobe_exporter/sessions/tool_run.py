"""A tool of a session: a process of its own, `kprobe-exporter tool NAME`, and its output line by line."""

import base64
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.errors import StartError
from kprobe_exporter.sessions.protocol import SessionRequest, ToolRequest, message

PIECE = 65536
"""Bytes of one read."""

MAX_LINE = 1 << 20
"""Bytes of a line of a tool: a longer one is cut."""

OOM_SCORE = "500"
"""The kernel ends a tool before the agent if memory is short."""

PROGRAM = (sys.executable, "-P", "-m", "kprobe_exporter")
"""This program. -P: it imports nothing from the working directory."""

_LOGGED = re.compile(rb"[0-9T:.Z-]+ (DEBUG|INFO|WARNING|ERROR) [\w.]+: (.*)", re.DOTALL)
_TRACED = re.compile(r"[0-9,]+ probes? traced")
_PREFIX = b"kprobe-exporter: "


def tool_words(tool: ToolRequest, request: SessionRequest, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a tool, from its name on.

    ``arguments`` are the names of its options that are words without a name, in their order. A value begins
    with no dash of its own: it follows ``=``, or ``--``.
    """
    words = [tool.name, "--verbose", f"--duration={request.seconds:g}"]
    words += ["--json"] if request.as_json else []
    words += ["--perfetto=-"] if request.perfetto else []
    words += [_word(name, value) for name, value in request.scope.items()]
    for key, value in tool.options.items():
        if key not in arguments:
            words += [_word(key, each) for each in (value if isinstance(value, list) else [value])]
    behind = [str(tool.options[key]) for key in arguments if key in tool.options]
    return [*words, "--", *behind] if behind else words


def _word(name: str, value: object) -> str:
    return f"--{name}" if value is True else f"--{name}={value}"


class ToolRun:
    """The process of a tool. One thread uses it, and never waits for it.

    The process ends by itself after its seconds, and when no process can read its stdout any more: so also
    if the agent is killed. Its stdout and stderr do not block here.
    """

    def __init__(self, name: str, words: Sequence[str], tracefs: Path | None) -> None:
        """Start the process. Raises StartError."""
        self.name = name
        command = [*PROGRAM, "tool", words[0]]
        command += [] if tracefs is None else [f"--tracefs={tracefs}"]
        try:
            self._process = subprocess.Popen(
                [*command, *words[1:]],
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C at the agent's terminal is the agent's
            )
        except (OSError, ValueError) as error:
            raise StartError(f"{name} cannot be started: {error}.") from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.out, self.err = self._process.stdout.fileno(), self._process.stderr.fileno()
        for descriptor in (self.out, self.err):
            os.set_blocking(descriptor, False)
        with suppress(OSError):
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(OOM_SCORE)
        self.open = {self.out, self.err}
        self._rest = {self.out: b"", self.err: b""}
        self._asked_to_end = False
        self._kill_at = float("inf")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status once the process has ended."""
        return self._process.poll()

    def read(self, descriptor: int) -> tuple[list[bytes], bool]:
        """Return the complete lines of ``out`` or ``err`` since the last read, and whether it is at its end.

        The caller then closes it.
        """
        if (data := self._available(descriptor)) is None:
            return [], False
        *lines, rest = (self._rest[descriptor] + data).split(b"\n")
        if rest and (not data or len(rest) > MAX_LINE):
            lines, rest = [*lines, rest], b""
        self._rest[descriptor] = rest
        return lines, not data

    def read_piece(self) -> tuple[list[bytes], bool]:
        """Return the same for the bytes of ``out``, which are not lines: a piece if there is one."""
        data = self._available(self.out)
        return [data] if data else [], data == b""

    @staticmethod
    def _available(descriptor: int) -> bytes | None:
        """Return the bytes that can be read now, none at the end, or None if the process may write more."""
        try:
            return os.read(descriptor, PIECE)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self, descriptor: int) -> None:
        """Read no more of ``out`` or ``err``. The process ends soon if ``out`` has no reader."""
        if descriptor in self.open:
            self.open.remove(descriptor)
            stream = self._process.stdout if descriptor == self.out else self._process.stderr
            assert stream is not None
            stream.close()

    def end_without_reader(self, patience: float) -> None:
        """Close ``out``, which ends the process without a signal; it is killed after ``patience`` seconds."""
        self._asked_to_end = True
        self._kill_at = min(self._kill_at, time.monotonic() + patience)
        self.close(self.out)

    def end(self, patience: float) -> None:
        """Ask the process to end and to write the rest; it is killed after ``patience`` seconds."""
        if not self._asked_to_end:
            self._asked_to_end = True
            self._kill_at = time.monotonic() + patience
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once. The caller then removes its instance from the kernel."""
        self._signal(signal.SIGKILL)

    def look(self, now: float) -> None:
        """Kill the process if it was asked to end, and did not in time."""
        if now >= self._kill_at and self.status is None:
            self._kill_at = float("inf")
            self.kill()

    def _signal(self, number: int) -> None:
        with suppress(OSError):
            self._process.send_signal(number)  # does nothing once the process was waited for


def note(name: str, line: bytes) -> bytes:
    """Return the message about a line of a tool's stderr."""
    logged = _LOGGED.fullmatch(line)
    level, text = (logged[1].decode().lower(), logged[2]) if logged else ("warning", line)
    shown = text.removeprefix(_PREFIX).decode(errors="backslashreplace")
    if level == "info" and _TRACED.fullmatch(shown):
        return message({"tool": name, "traced": True})
    return message({"tool": name, "note": shown, "level": level})


def piece(name: str, data: bytes) -> bytes:
    """Return the message with a piece of a tool's timeline."""
    return message({"tool": name, "data": base64.b64encode(data).decode()})


def row(name: str, line: bytes, *, as_json: bool) -> bytes:
    """Return the message with a line of a tool's stdout."""
    if as_json and line.startswith(b"{") and line.endswith(b"}"):
        return b'{"tool": "%s", "row": %s}\n' % (name.encode(), line)
    # A byte that is not UTF-8 becomes a lone surrogate, from which the client makes that byte again.
    return message({"tool": name, "text": line.decode(errors="surrogateescape")})
