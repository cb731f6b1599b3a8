"""Marks that programs write to ``trace_marker`` in the form of atrace, as slices and counters of a timeline.

``B|PID|NAME`` begins a slice, ``E|PID`` or ``E`` ends the latest one of the thread, and ``C|PID|NAME|VALUE``
is a value of a counter of the process. Other text is ignored.

The kernel records the thread that wrote a mark. So a mark is always drawn for that thread and its process,
and the id in its text decides nothing: a mark with the id of another process is refused. If the process of a
thread is unknown, as after its end, the id cannot be checked.
"""

import re
from typing import Protocol

from kprobe_exporter.errors import one_line
from kprobe_exporter.export.perfetto import Thread
from kprobe_exporter.model.records import COMMON_COMM, TGID, TID, TIME, VALUES, Layout, Record
from kprobe_exporter.model.values import Arg
from kprobe_exporter.recording.describe import text

SYSTEM = "ftrace"
"""The system of the event, which the kernel records for each write."""

MARK = re.compile(
    rb"B\|(?P<begun>\d{1,10})\|(?P<name>[^\n]*)\n?"
    rb"|E(?:\|(?:(?P<ended>\d{1,10})(?:\|[^\n]*)?)?)?\n?"
    rb"|C\|(?P<counted>\d{1,10})\|(?P<counter>[^|\n]+)\|(?P<value>-?\d{1,18})(?:\|[^\n]*)?\n?"
)

MAX_NAME = 200
"""Characters of a name."""

MAX_DEPTH = 100
"""Open slices of a thread that are kept. Deeper ones are not drawn."""

MAX_THREADS = 10_000
"""Threads with open slices. Beyond it, the slices of the thread that began first are not drawn."""

MAX_COUNTERS = 1_000
"""Counters of all processes. Further ones are not drawn."""


class MarksTimeline(Protocol):
    """The parts of a timeline that draw marks."""

    def mark(self, thread: Thread, name: str, start: int, duration: int | None) -> None: ...
    def counter(self, thread: Thread, name: str, time: int, value: int) -> None: ...


def marks_layout(layout_id: int) -> Layout:
    """Return the layout of the kernel's event ``print``: its text, and the thread's name."""
    args = (Arg("buf", "str"), Arg(COMMON_COMM, "comm"))
    return Layout(layout_id, "marks", "print", "tracepoint", "print", args)


class _Open:
    """The open slices of a thread as name and beginning, and the number of those that are not kept."""

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.slices: list[tuple[str, int]] = []
        self.skipped = 0


class Marks:
    """Draws marks from records in the order of time. ``refused`` counts those with the id of another process.

    A slice that may span a loss is not drawn, because its end may belong to another slice.
    """

    def __init__(self, timeline: MarksTimeline) -> None:
        self.refused = 0
        self._timeline = timeline
        self._open: dict[int, _Open] = {}
        self._counters: set[tuple[int, str]] = set()
        self._lost_until = 0

    def lose(self, end: int) -> None:
        """Note that events were lost up to this moment."""
        self._lost_until = max(self._lost_until, end)

    def add(self, record: Record) -> None:
        """Take the mark of a record of `marks_layout`."""
        written, comm = record[VALUES : VALUES + 2]
        mark = MARK.fullmatch(written) if isinstance(written, bytes) else None
        if mark is None:
            return
        tid, tgid, time = record[TID], record[TGID], record[TIME]
        claimed = mark["begun"] or mark["ended"] or mark["counted"]
        if claimed is not None and tgid is not None and int(claimed) != tgid:
            self.refused += 1
            return
        thread = Thread(tid, tgid, text(comm) if comm else f"thread {tid}")
        if mark["begun"] is not None:
            self._begin(thread, _name(mark["name"]), time)
        elif mark["counted"] is not None:
            self._count(thread, _name(mark["counter"]), time, int(mark["value"]))
        else:
            self._end(thread, time)

    def finish(self) -> None:
        """Draw the slices that have not ended, as such."""
        for one in self._open.values():
            for name, start in one.slices:
                if start >= self._lost_until:
                    self._timeline.mark(one.thread, name, start, None)
        self._open.clear()

    def _begin(self, thread: Thread, name: str, time: int) -> None:
        one = self._open.get(thread.id)
        if one is None or one.thread.process != thread.process:
            if len(self._open) >= MAX_THREADS:
                del self._open[next(iter(self._open))]
            one = self._open[thread.id] = _Open(thread)
        if len(one.slices) < MAX_DEPTH:
            one.slices.append((name, time))
        else:
            one.skipped += 1

    def _end(self, thread: Thread, time: int) -> None:
        one = self._open.get(thread.id)
        if one is None or one.thread.process != thread.process:
            return  # it began before the window, or another thread had this id
        if one.skipped:
            one.skipped -= 1
            return
        name, start = one.slices.pop()
        if start >= self._lost_until:
            self._timeline.mark(one.thread, name, start, time - start)
        if not one.slices:
            del self._open[thread.id]

    def _count(self, thread: Thread, name: str, time: int, value: int) -> None:
        counter = thread.id if thread.process is None else thread.process, name
        if counter in self._counters or len(self._counters) < MAX_COUNTERS:
            self._counters.add(counter)
            self._timeline.counter(thread, name, time, value)


def _name(written: bytes) -> str:
    return one_line(text(written[: 4 * MAX_NAME]))[:MAX_NAME] or "mark"
