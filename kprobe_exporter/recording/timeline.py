"""Draws records as a timeline, which ui.perfetto.dev shows."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kprobe_exporter.aggregate.recipes import passes
from kprobe_exporter.export.perfetto import Clocks, Thread, Timeline
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import LAYOUT_ID, Batch, Join, Layout, Record, is_nested
from kprobe_exporter.recording.describe import describer, text
from kprobe_exporter.recording.marks import Marks


class _Event(NamedTuple):
    """How the records of one layout are drawn.

    ``nested``: calls, which lie in each other on their thread. ``at_end``: their time is that of the end.
    """

    probe: str
    describe: Callable[[Record], Mapping[str, Any]]
    passes: Callable[[Record], bool]
    nested: bool
    at_end: bool = False


class TimelineEvents:
    """Adds records and losses to a timeline. Not thread-safe.

    ``name`` returns the name of a thread whose records do not hold it.
    """

    def __init__(self, timeline: Timeline, name: Callable[[int], bytes | None] = lambda tid: None) -> None:
        self._timeline = timeline
        self._name = name
        self._events: dict[int, _Event] = {}
        self._marks, self._marks_id = Marks(timeline), -1

    def add(self, probe: str, layout: Layout, join: Join | None = None, *conditions: Where | None) -> None:
        """Register an installed probe before its records come. They have to meet the conditions."""
        tests = [passes(layout, condition) for condition in conditions if condition is not None]
        self._events[layout.layout_id] = _Event(
            probe,
            describer(probe, layout),
            lambda record: all(test(record) for test in tests),
            nested=join is not None and is_nested(join.by, join.key),
        )

    def add_joined(self, probe: str, layout: Layout, *, nested: bool) -> None:
        """Register a call or pair that the kernel joins: a record has the time of the end, and `duration`."""
        describe = describer(probe, layout)
        self._events[layout.layout_id] = _Event(probe, describe, lambda _: True, nested, at_end=True)

    def add_marks(self, layout: Layout) -> None:
        """Draw the records of `marks_layout` as marks of programs."""
        self._marks_id = layout.layout_id

    def finish(self) -> int:
        """Draw marks that have not ended; return the number of those with the id of another process."""
        self._marks.finish()
        return self._marks.refused

    def consume(self, batch: Batch) -> None:
        """Add the events of a batch."""
        for loss in batch.losses:
            self._timeline.loss(loss.cpu, loss.start, loss.end)
            self._marks.lose(loss.end)
        for record in batch.records:
            if record[LAYOUT_ID] == self._marks_id:
                self._marks.add(record)
                continue
            event = self._events[record[LAYOUT_ID]]
            if event.passes(record):
                self._draw(event, event.describe(record))

    def _draw(self, event: _Event, made: Mapping[str, Any]) -> None:
        tid = made["tid"]
        thread = Thread(tid, made["pid"], made["comm"] or text(self._name(tid) or b"") or f"thread {tid}")
        values = {name: made[name] for name in ("return", "error", "caller", "cpu") if name in made}
        values |= made["args"]
        start, duration = made["time_ns"], made.get("duration_ns")
        if duration is None:
            self._timeline.instant(thread, event.probe, start, values)
            return
        start -= duration if event.at_end else 0
        if event.nested:
            self._timeline.call(thread, event.probe, start, duration, values)
        else:
            values |= {"tid": thread.id, "comm": thread.name}
            self._timeline.pair(event.probe, event.probe, start, duration, values)


def clocks() -> Clocks:
    """Return this moment on the clocks of a timeline."""
    return Clocks(
        *map(time.clock_gettime_ns, (time.CLOCK_MONOTONIC, time.CLOCK_REALTIME, time.CLOCK_BOOTTIME))
    )
