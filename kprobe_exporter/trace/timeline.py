"""``--perfetto``: writes the events as a timeline, which ui.perfetto.dev shows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kprobe_exporter.config.model import Probe
from kprobe_exporter.errors import StartError, UsageError, counted
from kprobe_exporter.export.perfetto import Timeline
from kprobe_exporter.identity.running import Places
from kprobe_exporter.plan.metric import export_condition
from kprobe_exporter.recording.timeline import TimelineEvents, clocks
from kprobe_exporter.trace.capture import collected
from kprobe_exporter.trace.loops import run_until_end
from kprobe_exporter.trace.output import Gone, Output, writing
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.marker import copy_marks
from kprobe_exporter.tracefs.profile import buffer_stats
from kprobe_exporter.util.file_access import replaced_whole

STDOUT = Path("-")
"""In place of a file: the timeline goes to stdout."""

NO_TERMINAL = "--perfetto -: a timeline is binary: redirect stdout to a file."

PIECE = 65536
"""Bytes of a timeline that wait for one write to stdout."""


def write_timeline(
    session: TraceSession,
    probes: Sequence[Probe],
    path: Path,
    *,
    all_fields: bool = False,
    marks: Callable[[str], object] | None = None,
) -> int:
    """Write the events until the session ends; return the number of lost ones.

    ``all_fields``: a tracepoint without fetch arguments has all its readable fields. With ``marks`` the file
    has the marks of all programs; it is called with the file of tracefs to which they are written. The
    condition of an export holds here, too. A file that is there is replaced once the new one is complete.
    Raises TracefsError, OSError for other files of the kernel, and StartError if the file cannot be written.
    Raises UsageError for STDOUT if that is a terminal.
    """
    with ExitStack() as stack:
        if path == STDOUT:
            write = stack.enter_context(_to_stdout(session.out))
        else:
            with writing(path):
                write = writing(path)(stack.enter_context(replaced_whole(path, private=True)).write)
        events = TimelineEvents(Timeline(write, clocks(), Places().name))
        take, wanted = events.consume, marks is not None
        with collected(session, probes, take, single=True, all_fields=all_fields, marks=wanted) as capture:
            if capture.marks is not None:
                events.add_marks(capture.marks)
            for plan, attached in zip(capture.plans, capture.attached, strict=True):
                only = attached.residual_filter, export_condition(plan.probe.export, plan.probe.times)
                events.add(plan.probe.name, attached.layout, attached.joined, *only)
            with suppress(Gone), _copied(session.instance, marks):
                run_until_end(session, capture, lambda passed: None)
            if refused := events.finish():
                marked = counted(refused, "mark")
                session.warn(f"not in the file: {marked} with the id of another process.")
            stats = buffer_stats(session.instance.files, session.instance.path)
        with writing(path):
            stack.pop_all().close()
    return stats.overrun + stats.dropped


@contextmanager
def _to_stdout(out: Output) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes to stdout, in large pieces. Raises StartError if the reader has gone."""
    if out.terminal:
        raise UsageError(NO_TERMINAL)
    held = bytearray()

    def write(data: bytes) -> None:
        held.extend(data)
        if len(held) >= PIECE:
            piece = bytes(held)
            held.clear()
            out.write_raw(piece)

    yield write
    try:
        out.write_raw(bytes(held))
    except Gone:
        raise StartError("the timeline is cut short: its reader has gone, or was too slow.") from None


@contextmanager
def _copied(instance: Instance, marks: Callable[[str], object] | None) -> Iterator[None]:
    """Record what programs write to the ``trace_marker`` of the top level, or else of the instance."""
    if marks is None:
        yield
        return
    copied = copy_marks(instance.files, instance.path, on=True)
    try:
        marks("trace_marker" if copied else f"{instance.path}/trace_marker")
        yield
    finally:
        if copied:
            copy_marks(instance.files, instance.path, on=False)
