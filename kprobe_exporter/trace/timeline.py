"""``--perfetto``: writes the events as a timeline, which ui.perfetto.dev shows."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kprobe_exporter.aggregate.recipes import passes
from kprobe_exporter.config.model import Probe
from kprobe_exporter.export.perfetto import Clocks, Thread, Timeline
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import LAYOUT_ID, Batch, Record
from kprobe_exporter.plan.metric import export_condition
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.trace.capture import collected
from kprobe_exporter.trace.loops import run_until_end
from kprobe_exporter.trace.objects import describer
from kprobe_exporter.trace.output import Gone, writing
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.tracefs.profile import buffer_stats
from kprobe_exporter.util.file_access import replaced_whole


class _Event(NamedTuple):
    """How the records of one layout are drawn. ``nested``: calls, which lie in each other on their thread."""

    probe: str
    describe: Callable[[Record], Mapping[str, Any]]
    passes: Callable[[Record], bool]
    nested: bool


class TimelineEvents:
    """Adds records and losses to a timeline. Not thread-safe."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._events: dict[int, _Event] = {}

    def add(self, probe: str, attached: Attached, only: Where | None = None) -> None:
        """Register an installed probe before its records come; ``only`` is a further condition."""
        layout, join = attached.layout, attached.joined
        conditions = [one for one in (attached.residual_filter, only) if one is not None]
        tests = [passes(layout, condition) for condition in conditions]
        self._events[layout.layout_id] = _Event(
            probe,
            describer(probe, layout, attached.spec.kind, attached.spec.target),
            lambda record: all(test(record) for test in tests),
            nested=join is not None and (join.by == "stack" or join.key == ("tid",)),
        )

    def consume(self, batch: Batch) -> None:
        """Add the events of a batch."""
        for record in batch.records:
            event = self._events[record[LAYOUT_ID]]
            if event.passes(record):
                self._draw(event, event.describe(record))
        for loss in batch.losses:
            self._timeline.loss(loss.cpu, loss.start, loss.end)

    def _draw(self, event: _Event, made: Mapping[str, Any]) -> None:
        thread = Thread(made["tid"], made["pid"], made["comm"] or f"thread {made['tid']}")
        values = {name: made[name] for name in ("return", "error", "caller", "cpu") if name in made}
        values |= made["args"]
        if (duration := made.get("duration_ns")) is None:
            self._timeline.instant(thread, event.probe, made["time_ns"], values)
        elif event.nested:
            self._timeline.call(thread, event.probe, made["time_ns"], duration, values)
        else:
            values |= {"tid": thread.id, "comm": thread.name}
            self._timeline.pair(event.probe, event.probe, made["time_ns"], duration, values)


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
        events = TimelineEvents(Timeline(writing(path)(file.write), _clocks()))
        with collected(session, probes, events.consume, single=True, all_fields=all_fields) as capture:
            for plan, attached in zip(capture.plans, capture.attached, strict=True):
                only = export_condition(plan.probe.export, plan.probe.times)
                events.add(plan.probe.name, attached, only)
            with suppress(Gone):
                run_until_end(session, capture, lambda passed: None)
            stats = buffer_stats(session.instance.files, session.instance.path)
        with writing(path):
            stack.pop_all().close()
    return stats.overrun + stats.dropped


def _clocks() -> Clocks:
    return Clocks(
        *map(time.clock_gettime_ns, (time.CLOCK_MONOTONIC, time.CLOCK_REALTIME, time.CLOCK_BOOTTIME))
    )
