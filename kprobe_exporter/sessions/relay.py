"""One session in the agent: a client's connection, the processes of its tools, and the budget of both."""

import logging
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from kprobe_exporter.errors import SessionRefused, StartError, counted
from kprobe_exporter.sessions.protocol import (
    MAX_REQUEST_BYTES,
    Limits,
    SessionRequest,
    message,
    model_path,
    parse_request,
)
from kprobe_exporter.sessions.tool_run import ToolRun, note, piece, row, tool_words
from kprobe_exporter.tools.load import load_tool

log = logging.getLogger(__name__)

REQUEST_TIME_S = 5.0
"""Seconds that a client has for its request."""

START_TIME_S = 60.0
"""Seconds in addition to those of the request, in which the tools start and end by themselves."""

END_TIME_S = 30.0
"""Seconds that a tool has to end once it was asked to, before it is killed."""

FLUSH_TIME_S = 10.0
"""Seconds that a client has to read the rest once the tools have ended."""

HIGH_WATER = 1 << 20
"""Bytes that wait for a client: with more, its tools are not read, and wait themselves."""

SENT_AT_ONCE = 1 << 18

Reason: TypeAlias = Literal["done", "failed", "left", "budget", "stopped", "refused"]
"""How a session ended: by itself, with a tool that failed, by its client, by the budget or with the agent; or
it never began."""

REASONS: tuple[Reason, ...] = ("done", "failed", "left", "budget", "stopped", "refused")

NOTES: Mapping[Reason, str] = {
    "done": "the session is over.",
    "failed": "a tool failed.",
    "left": "the client ended the session.",
    "stopped": "the agent stops.",
}


class Watches:
    """The descriptors for which the loop waits, each with the function that is called when it is ready."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, descriptor: int, events: int, call: Callable[[], None]) -> None:
        """Wait for these events from now on; for none if they are 0."""
        known = self._selector.get_map().get(descriptor)
        if not events:
            self.forget(descriptor)
        elif known is None:
            self._selector.register(descriptor, events, call)
        elif known.events != events:
            self._selector.modify(descriptor, events, call)

    def forget(self, descriptor: int) -> None:
        """Wait no longer for it. Call this before it is closed, because its number may be used again."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def wait(self, seconds: float) -> None:
        """Wait, and call the functions of those that are ready."""
        for key, _ in self._selector.select(seconds):
            # An earlier function may have closed it.
            if self._selector.get_map().get(key.fd) == key:
                key.data()

    def close(self) -> None:
        self._selector.close()


@dataclass
class Host:
    """The parts that the sessions of an agent share. ``tools`` is the number of those that run."""

    limits: Limits
    tracefs: Path | None
    watches: Watches
    tools: int = 0
    results: Counter[Reason] = field(default_factory=Counter)
    to_clean: bool = False
    """Whether a signal ended a tool, so that its instance may stay in the kernel."""


class Session:
    """A connection from its first byte to its last. The server's thread alone calls it; no call waits.

    ``who`` names the client in the log: a printable text.
    """

    def __init__(self, sock: socket.socket, who: str, host: Host) -> None:
        sock.setblocking(False)
        self._sock: socket.socket | None = sock
        self._descriptor = sock.fileno()
        self._who, self._host = who, host
        self._received, self._out = bytearray(), bytearray()
        self._begun = time.monotonic()
        self._deadline = self._begun + REQUEST_TIME_S
        self._request: SessionRequest | None = None
        self._listens = True  # for the request, and for the client's end
        self._running: list[ToolRun] = []
        self._reason: Reason | None = None
        self._finished = self._exceeded = False
        self._rows = self._bytes = 0
        self._watch()

    @property
    def closed(self) -> bool:
        """Whether nothing of it is left."""
        return self._sock is None and not self._running

    @property
    def active(self) -> bool:
        """Whether its tools run."""
        return bool(self._running)

    def refuse(self, why: str) -> None:
        """Answer with a sentence, and close the connection as soon as the client has it."""
        self._host.results["refused"] += 1
        log.warning("a session of %s is refused: %s", self._who, why)
        self._reason, self._listens, self._finished = "refused", False, True
        self._deadline = time.monotonic() + FLUSH_TIME_S
        self._send(message({"refused": why}))

    def stop(self) -> None:
        """End it with the agent. The tools end because their output has no reader any more.

        A supervisor may have sent them a signal as well, and a second one would end them before they have
        removed all from the kernel.
        """
        self._reason = self._reason or "stopped"
        for run in self._running:
            self._host.watches.forget(run.out)
            run.end_without_reader(END_TIME_S)
        self._finish()
        self._drop()

    def kill(self) -> None:
        """End its tools at once."""
        for run in self._running:
            run.kill()

    def look(self, now: float) -> None:
        """Notice the tools that have ended, and times that are over."""
        for run in [*self._running]:
            run.look(now)
            if not run.open and run.status is not None:
                self._ended(run)
        if self._request is not None and not self._running:
            self._finish()
        if now < self._deadline:
            pass
        elif self._request is None and not self._finished:
            self.refuse(f"no request came within {REQUEST_TIME_S:g} s.")
        elif self._finished or now >= self._deadline + END_TIME_S:  # the client does not read
            self._drop()
        else:
            self._end("done")
        if self._finished and not self._out:
            self._drop()
        self._watch()

    def _receive(self) -> None:
        """Read the request, or the end of what the client sends."""
        assert self._sock is not None
        try:
            data = self._sock.recv(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if self._request is not None:  # nothing may follow the request but the end
            self._listens = False
            self._end("left")
        elif not data:
            self._drop()
        else:
            self._received += data
            line, newline, rest = self._received.partition(b"\n")
            if len(line) > MAX_REQUEST_BYTES:
                self.refuse(f"the request is longer than {MAX_REQUEST_BYTES:,} bytes.")
            elif rest:
                self.refuse("more than a request was sent.")
            elif newline:
                self._begin(bytes(line))
        self._watch()

    def _begin(self, line: bytes) -> None:
        """Start the tools that the request names, or refuse to."""
        host = self._host
        try:
            request = parse_request(line, host.limits)
            if host.tools + len(request.tools) > host.limits.max_tools:
                raise SessionRefused(
                    f"{counted(host.tools, 'tool')} of other sessions run, and this agent allows"
                    f" {host.limits.max_tools} at once (--session.max-tools of 'run'): try again later."
                )
            for tool in request.tools:
                path = model_path(tool.name)
                assert path is not None
                options = load_tool(path).model.options
                arguments = [key for key, option in options.items() if option.argument]
                run = ToolRun(tool.name, tool_words(tool, request, arguments), host.tracefs)
                self._running.append(run)
                host.tools += 1
        except (SessionRefused, StartError) as error:
            for run in self._running:
                run.end(END_TIME_S)
            self.refuse(str(error))
            return
        self._request = request
        self._begun = time.monotonic()
        self._deadline = self._begun + request.seconds + START_TIME_S
        log.info("a session of %s begins: %s", self._who, request.shown)

    def _read(self, run: ToolRun, descriptor: int) -> None:
        """Relay a tool's lines, as far as the budget goes."""
        as_json = self._request is not None and self._request.as_json
        draws = self._request is not None and self._request.perfetto and descriptor == run.out
        lines, over = run.read_piece() if draws else run.read(descriptor)
        if over:
            self._host.watches.forget(descriptor)
            run.close(descriptor)
        for line in [] if self._exceeded else lines:
            self._bytes += len(line) + (not draws)
            if self._bytes > self._host.limits.max_bytes:
                self._exceeded, self._reason = True, "budget"
                self._end("budget")
                break
            if draws:
                self._send(piece(run.name, line))
            elif descriptor == run.err:
                self._send(note(run.name, line))
            else:
                self._rows += 1
                self._send(row(run.name, line, as_json=as_json))
        self._watch()

    def _ended(self, run: ToolRun) -> None:
        self._running.remove(run)
        self._host.tools -= 1
        self._host.to_clean |= (run.status or 0) < 0
        if run.status and self._reason in (None, "done"):
            self._reason = "failed"
        self._send(message({"tool": run.name, "status": run.status}))

    def _end(self, reason: Reason) -> None:
        """Ask the tools to end and to write what they still have."""
        if self._reason is None:
            self._reason = reason
        for run in self._running:
            run.end(END_TIME_S)

    def _finish(self) -> None:
        """Tell the client and the log how it ended."""
        if self._finished or self._request is None:
            return
        self._finished, reason = True, self._reason or "done"
        self._deadline = time.monotonic() + FLUSH_TIME_S
        self._host.results[reason] += 1
        why = NOTES.get(reason, "")
        if reason == "budget":
            limit = self._host.limits.max_bytes
            why = (
                f"the tools wrote more than this agent allows, {limit:,} bytes (--session.max-size of 'run')."
            )
        self._send(message({"ended": reason, "note": why, "rows": self._rows, "bytes": self._bytes}))
        seconds, rows = time.monotonic() - self._begun, counted(self._rows, "line")
        log.info("the session of %s ended after %.1f s with %s: %s", self._who, seconds, rows, why)

    def _send(self, data: bytes) -> None:
        if self._sock is not None:
            self._out += data
            self._flush()

    def _flush(self) -> None:
        if self._sock is None:
            return
        try:
            sent = self._sock.send(memoryview(self._out)[:SENT_AT_ONCE]) if self._out else 0
        except BlockingIOError:
            return
        except OSError:
            self._drop()
            return
        del self._out[:sent]

    def _drop(self) -> None:
        """Close the connection; the tools end without it."""
        if self._sock is not None:
            self._host.watches.forget(self._descriptor)
            with suppress(OSError):
                self._sock.close()
            self._sock = None
            self._out.clear()
            self._listens = False
            self._end("left")

    def _watch(self) -> None:
        """Wait for the client, and for tools for whose output there is room."""
        watch = self._host.watches.watch
        if self._sock is not None:
            reads = selectors.EVENT_READ if self._listens else 0
            watch(self._descriptor, reads | (selectors.EVENT_WRITE if self._out else 0), self._go_on)
        wanted = selectors.EVENT_READ if len(self._out) < HIGH_WATER else 0
        for run in self._running:
            for descriptor in run.open:
                watch(descriptor, wanted, partial(self._read, run, descriptor))

    def _go_on(self) -> None:
        """Write to the client, and read from it."""
        self._flush()
        if self._sock is not None and self._listens:
            self._receive()
        self._watch()
