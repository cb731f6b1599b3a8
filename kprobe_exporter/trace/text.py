"""Prints the kernel's text of the events, live or at the end, line for line like perf-tools."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import click

from kprobe_exporter.errors import TracefsError
from kprobe_exporter.model.values import ProbeSpec
from kprobe_exporter.trace.entries import read_entries
from kprobe_exporter.trace.interrupt import Interrupt
from kprobe_exporter.trace.output import Gone, Output
from kprobe_exporter.trace.session import TracedThreads
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install
from kprobe_exporter.tracefs.profile import buffer_stats

READ_BYTES = 65536
"""More than one read of trace_pipe returns."""

HEADER_BYTES = 4096
HEADER = re.compile(rb"(?:#(?: [^\n]*)?\n)*")
"""The header of ``trace``. It does not match later lines such as ``##### CPU 1 buffer started ####``."""

TURN = 0.2
"""Seconds between two checks of the time, the threads of a process and the progress."""

PAUSE = 0.02
"""Seconds to pause once the pipe is empty: waking for each event would cost more than the event."""

AT_ONCE = 16
"""Reads in a row, before the request to stop, the time and the threads are checked again."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options of the output. ``seconds``: buffer in the kernel for so long, and write at the end."""

    title: str
    seconds: float | None = None
    header: bool = False
    stacks: bool = False


def show_format(instance: Instance, specs: Sequence[ProbeSpec], out: Output) -> None:
    """Print the ``format`` of the events: the fields that a filter can name. Raises TracefsError."""
    with _installed(instance, specs) as probes, suppress(Gone):
        for probe in probes:
            out.write(instance.read(f"events/{probe.system}/{probe.event}/format"))


def trace(
    instance: Instance,
    specs: Sequence[ProbeSpec],
    threads: TracedThreads,
    text_options: TextOptions,
    out: Output,
    stop: Interrupt,
) -> int:
    """Trace until a request to stop; return the number of events lost because the ring buffer was full."""
    with _installed(instance, specs) as probes:
        if text_options.stacks:
            instance.write("options/stacktrace", "1")
        with _pipe(instance) as pipe:
            for probe in reversed(probes):
                probe.enable()
            text = _Text(instance, pipe, out, stop)
            with suppress(Gone):
                if text_options.seconds is None:
                    out.say(f"Tracing {text_options.title}. Ctrl-C to end.")
                    text.live(threads.look, header=text_options.header)
                else:
                    out.say(
                        f"Tracing {text_options.title} for {text_options.seconds:g} seconds (buffered)..."
                    )
                    text.wait(text_options.seconds, threads.look)
                for probe in probes:
                    probe.disable()
                text.rest(
                    header=text_options.header and text_options.seconds is not None,
                    held=text_options.seconds is not None,
                )
                out.say("\nEnding tracing...")
            stats = buffer_stats(instance.files, instance.path)
    return stats.overrun + stats.dropped


class _Text:
    """Copies the instance's trace_pipe to stdout."""

    def __init__(self, instance: Instance, pipe: int, out: Output, stop: Interrupt) -> None:
        self._instance, self._pipe, self._out, self._stop = instance, pipe, out, stop

    def live(self, look: Callable[[], None], *, header: bool) -> None:
        """Write events as they come, until a request to stop."""
        if header:
            self._header()
        looked = time.monotonic()
        while not self._stop.is_set():
            self._stop.wait_for([self._pipe], TURN, self._out.watched)
            _, more = self._some()
            if not more:
                self._stop.wait_for([], PAUSE, self._out.watched)
            if time.monotonic() - looked > TURN:
                look()
                looked = time.monotonic()

    def wait(self, seconds: float, look: Callable[[], None]) -> None:
        """Let the kernel buffer events for so long, or until a request to stop."""
        started = time.monotonic()
        with progress() as tell:
            while not self._stop.is_set() and (passed := time.monotonic() - started) < seconds:
                entries = buffer_stats(self._instance.files, self._instance.path).entries
                tell(f"{passed:.0f} of {seconds:g} s, {entries:,} events")
                self._stop.wait_for([], min(TURN, seconds - passed))
                look()

    def rest(self, *, header: bool, held: bool) -> None:
        """Write the rest; to a terminal only if it was ``held``, so that Ctrl-C ends a flood at once."""
        if self._out.terminal and not held:
            return
        if header:
            self._header()
        stopped_before = self._stop.is_set()
        written, more = 0, True
        with progress() as tell:
            while more and not self._stop.gives_up and self._stop.is_set() == stopped_before:
                lines, more = self._some()
                written += lines
                tell(f"{written:,} lines written")

    def _some(self) -> tuple[int, bool]:
        """Write the data of a few reads; return the number of lines, and whether there may be more."""
        lines = 0
        for _ in range(AT_ONCE):
            try:
                data = read_entries(self._pipe) if self._out.terminal else os.read(self._pipe, READ_BYTES)
            except BlockingIOError:
                return lines, False
            except OSError as error:
                raise TracefsError(self._instance.cannot_read(error)) from None
            if not data:
                return lines, False
            lines += data.count(b"\n")
            self._out.write(data)
        return lines, True

    def _header(self) -> None:
        """Write the names of the columns, which are in ``trace`` and not in trace_pipe."""
        opened = self._instance.files.open_pipe(f"{self._instance.path}/trace")
        try:
            found = HEADER.match(os.read(opened, HEADER_BYTES))
        finally:
            os.close(opened)
        self._out.write(found[0] if found else b"")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress on one line of stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda said: None
        return

    def tell(said: str) -> None:
        click.echo(f"\r{said}\x1b[K", err=True, nl=False)

    try:
        yield tell
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


@contextmanager
def _installed(instance: Instance, specs: Sequence[ProbeSpec]) -> Iterator[list[Installed]]:
    """Install the events, and remove them on exit. Their names need be unique only in this instance."""
    probes: list[Installed] = []
    with ExitStack() as stack:
        for spec in specs:
            probes.append(install(instance, spec, set()))
            stack.callback(probes[-1].remove)
        yield probes


@contextmanager
def _pipe(instance: Instance) -> Iterator[int]:
    pipe = instance.open_pipe()
    try:
        yield pipe
    finally:
        os.close(pipe)
