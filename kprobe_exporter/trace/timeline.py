"""``--perfetto``: writes the events as a timeline, which ui.perfetto.dev shows."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from kprobe_exporter.config.model import Probe
from kprobe_exporter.export.perfetto import Timeline
from kprobe_exporter.plan.metric import export_condition
from kprobe_exporter.recording.timeline import TimelineEvents, clocks
from kprobe_exporter.trace.capture import collected
from kprobe_exporter.trace.loops import run_until_end
from kprobe_exporter.trace.output import Gone, writing
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.tracefs.profile import buffer_stats
from kprobe_exporter.util.file_access import replaced_whole


def write_timeline(
    session: TraceSession, probes: Sequence[Probe], path: Path, *, all_fields: bool = False
) -> int:
    """Write the events until the session ends; return the number of lost ones.

    ``all_fields``: a tracepoint without fetch arguments has all its readable fields. The condition of an
    export holds here, too. A file that is there is replaced once the new one is complete. Raises
    TracefsError, OSError for other files of the kernel, and StartError if the file cannot be written.
    """
    with ExitStack() as stack:
        with writing(path):
            file = stack.enter_context(replaced_whole(path, private=True))
        events = TimelineEvents(Timeline(writing(path)(file.write), clocks()))
        with collected(session, probes, events.consume, single=True, all_fields=all_fields) as capture:
            for plan, attached in zip(capture.plans, capture.attached, strict=True):
                only = attached.residual_filter, export_condition(plan.probe.export, plan.probe.times)
                events.add(plan.probe.name, attached.layout, attached.joined, *only)
            with suppress(Gone):
                run_until_end(session, capture, lambda passed: None)
            stats = buffer_stats(session.instance.files, session.instance.path)
        with writing(path):
            stack.pop_all().close()
    return stats.overrun + stats.dropped
