"""Prints the kernel's text of the events, live or at the end, line for line like perf-tools."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from kprobe_exporter.errors import TracefsError
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.trace.output import Gone, Output
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install
from kprobe_exporter.tracefs.profile import buffer_stats
from kprobe_exporter.util.progress import progress

READ_BYTES = 65536
"""More than one read of trace_pipe returns, and more than the kernel prints of one entry:
TRACE_SEQ_BUFFER_SIZE is 8192, and a page before 6.8."""

ENOUGH = 16384
"""Bytes after which `read_entries` returns, so that its caller can look at the time."""

HEADER_BYTES = 4096
HEADER = re.compile(rb"(?:#(?: [^\n]*)?\n)*")
"""The header of ``trace``. It does not match later lines such as ``##### CPU 1 buffer started ####``."""

NOTES = rb"(?:(?:CPU:\d+ \[LOST \d+ EVENTS\]|#{2,} CPU \d+ buffer started #{2,})\n)*"
"""The kernel's own lines before an entry. An entry itself begins with the thread's name in 16 columns, the
first of them a blank, so that no name can look like them."""

USER_STACKS = ("userstacktrace", "sym-userobj")
"""The options with which the kernel prints a program's stack, each address as ``FILE[+0xOFFSET]``."""

STACK = rb"(?: => [^\n]*\n)+"

ENTRY = re.compile(
    rb"(?P<notes>" + NOTES + rb")"
    rb"(?P<head>.{16}-\d+ [^:]*: )"
    rb"(?:(?P<stack><(?:user )?stack trace>\n" + STACK + rb")|(?P<body>.*))",
    re.DOTALL,
)
"""An entry of trace_print_context() (kernel/trace/trace_output.c): a stack, which is of several lines,
or an event, whose own name stands in front of all that a program can choose."""

TURN = 0.2
"""Seconds between two checks of the time, the threads of a process and the progress."""

PAUSE = 0.02
"""Seconds to pause once the pipe is empty: waking for each event would cost more than the event."""

AT_ONCE = 16
"""Reads in a row, before the request to stop, the time and the threads are checked again."""


def show_format(instance: Instance, specs: Sequence[ProbeSpec], out: Output) -> None:
    """Print the ``format`` of the events: the fields that a filter can name. Raises TracefsError."""
    with installed(instance, specs) as probes, suppress(Gone):
        for probe in probes:
            out.write(instance.read(f"events/{probe.system}/{probe.event}/format"))


def trace(
    session: TraceSession,
    specs: Sequence[ProbeSpec],
    title: str,
    *,
    header: bool,
    stacks: bool,
    user_stacks: bool = False,
) -> int:
    """Trace until the session ends; return the number of events lost because the ring buffer was full.

    If its seconds are given, events are buffered in the kernel for so long, and written at the end.
    """
    instance, out, seconds, look = session.instance, session.out, session.seconds, session.look
    with installed(instance, specs) as probes:
        for option in (*(["stacktrace"] if stacks else []), *(USER_STACKS if user_stacks else [])):
            instance.write(f"options/{option}", "1")
        with open(instance.open_pipe(), "rb", buffering=0) as pipe:
            for probe in reversed(probes):
                probe.enable()
            text = KernelText(instance, pipe.fileno(), out)
            with suppress(Gone):
                until = ". Ctrl-C to end." if seconds is None else f" for {seconds:g} seconds (buffered)..."
                out.say(f"Tracing {title}{until}")
                session.begin()
                if seconds is None:
                    text.live(look, header=header)
                else:
                    text.wait(seconds, look)
                for probe in probes:
                    probe.disable()
                held = seconds is not None
                text.rest(header=header and held, whole=held or not out.stop.signalled)
                out.say("\nEnding tracing...")
            stats = buffer_stats(instance.files, instance.path)
    return stats.overrun + stats.dropped


class KernelText:
    """Copies the instance's trace_pipe to stdout.

    ``escape`` keeps a name's newline from beginning a line of an entry on a terminal.
    """

    def __init__(
        self, instance: Instance, pipe: int, out: Output, escape: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._instance, self._pipe, self._out, self._stop = instance, pipe, out, out.stop
        self._escape = escape or on_its_lines

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

    def rest(self, *, header: bool, whole: bool) -> None:
        """Write the rest; to a terminal only if ``whole``, so that Ctrl-C ends a flood at once."""
        if self._out.terminal and not whole:
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
                data = (
                    read_entries(self._pipe, self._escape)
                    if self._out.terminal
                    else os.read(self._pipe, READ_BYTES)
                )
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
        with open(opened, "rb", buffering=0):
            found = HEADER.match(os.read(opened, HEADER_BYTES))
        self._out.write(found[0] if found else b"")


def read_entries(pipe: int, escape: Callable[[bytes], bytes] | None = None) -> bytes:
    """Return the next entries, each on a line of its own; b"" at the end. Raises BlockingIOError.

    A newline in a name does not begin a line on a terminal then. A read of one byte makes the kernel print
    one entry, and the next read returns the rest of that entry alone (tracing_read_pipe(),
    kernel/trace/trace.c).
    """
    data = b""
    while len(data) < ENOUGH:
        try:
            entry = os.read(pipe, 1)
            entry += os.read(pipe, READ_BYTES) if entry else b""
        except BlockingIOError:
            if not data:
                raise
            break
        if not entry:
            break
        data += (escape or on_its_lines)(entry)
    return data


def on_its_lines(entry: bytes) -> bytes:
    """Escape the newlines of an entry that the kernel did not write itself."""
    found = ENTRY.fullmatch(entry)
    if found is None:
        return _one_line(entry)
    notes, head, stack, body = found["notes"], found["head"], found["stack"], found["body"]
    escaped_head = head.replace(b"\n", b"\\n")
    return notes + escaped_head + (stack if stack is not None else _one_line(body))


def _one_line(text: bytes) -> bytes:
    return text.removesuffix(b"\n").replace(b"\n", b"\\n") + b"\n"


@contextmanager
def installed(instance: Instance, specs: Sequence[ProbeSpec]) -> Iterator[list[Installed]]:
    """Install the events, and remove them on exit. Their names need be unique only in this instance."""
    probes: list[Installed] = []
    with ExitStack() as stack:
        for spec in specs:
            probes.append(install(instance, spec, set()))
            stack.callback(probes[-1].remove)
        yield probes
