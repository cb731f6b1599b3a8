"""The time of threads by class, from the records of the scheduler's events."""

import time
from collections.abc import Callable, Sequence
from operator import itemgetter

from kprobe_exporter.aggregate.stack_classes import UNACCOUNTED, stack_class
from kprobe_exporter.aggregate.stack_counts import cut
from kprobe_exporter.aggregate.thread_times import ThreadTimes, Totals
from kprobe_exporter.errors import name_text
from kprobe_exporter.identity.threads import CLONE_THREAD
from kprobe_exporter.model.records import LAYOUT_ID, TID, TIME, Batch, Layout, Record
from kprobe_exporter.model.stacks import Stack
from kprobe_exporter.trace.threads_in_scope import ScopeOfThreads, ThreadFiles

SWITCH, WAKING, WAKEUP, STARTED, NEW = "switch", "waking", "wakeup", "started", "new_thread"
"""The probes of the tools whose time is shown by class."""


class TimeClasses:
    """Feeds records of the scheduler's events to `ThreadTimes`, and knows the threads' labels.

    The records of a batch are handled with the next one, because their stacks may come with it.
    """

    def __init__(self, scope: ScopeOfThreads, files: ThreadFiles, labels: Sequence[str]) -> None:
        self._scope, self._files, self._shown = scope, files, labels
        self._names: dict[int, bytes] = {}
        self._processes: dict[int, int] = {}
        self._born: dict[int, int] = {}  # the processes of threads that have not been woken yet
        self._handlers: dict[int, Callable[[Record], None]] = {}
        self._stacks: dict[int, tuple[Record, Stack]] = {}
        self._waiting: list[tuple[int, Record | None]] = []  # with the time; a loss has no record
        self._start = 0
        self.totals = Totals(self.labels)
        self.times = ThreadTimes(self.totals.add)

    def add(self, name: str, layout: Layout) -> None:
        """Register the layout of a probe before its records come."""
        place = layout.index
        if name == SWITCH:
            prev, state, comm, after = place("prev"), place("state"), place("name"), place("next")

            def switched(record: Record) -> None:
                self._switched(record, record[prev], record[state], record[comm], record[after])

            self._handlers[layout.layout_id] = switched
        elif name == NEW:
            child, flags = place("child"), place("flags")
            self._handlers[layout.layout_id] = lambda record: self._created(
                record[TID], record[child], record[flags]
            )
        else:
            task, handle = place("task"), self._started if name == STARTED else self.times.woken
            self._handlers[layout.layout_id] = lambda record: handle(record[task], record[TIME])

    def begin(self, now: int) -> None:
        """Begin with the threads of the scope. Events before ``now`` are ignored."""
        self._start = now
        for tid in self._scope.threads():
            self.times.watch(tid, now, self._files.observed(tid))

    def consume(self, batch: Batch) -> None:
        """Take a batch, and handle the records of the one before it."""
        for record, stack in batch.stacks:
            self._stacks[id(record)] = record, stack
        self._handle()
        events: list[tuple[int, Record | None]] = [(loss.start, None) for loss in batch.losses]
        events += [(record[TIME], record) for record in batch.records]
        events.sort(key=itemgetter(0))
        self._waiting = events

    def flush(self, empty: Callable[[], None]) -> int:
        """Add the time of all threads until now, and return this moment; ``empty`` delivers all records.

        The scope is listed before that, so that all who ended before have reported it. A thread that is gone
        without that has left the scope, or changed its id.
        """
        known, here = set(self.times.threads), self._scope.threads()
        now = time.monotonic_ns()
        empty()
        self._handle(now)
        for tid in known.difference(here).intersection(self.times.threads):
            self.times.left(tid, now)
        self.times.flush(now, self._files.ran)
        for tid in here.difference(self.times.threads, self._born):
            if self._files.lives(tid):
                self.times.watch(tid, now)
        self._stacks = {at: one for at, one in self._stacks.items() if one[0][TIME] > now}
        gone = self._processes.keys() - self.times.threads - self._born.keys()
        for tid in gone:
            del self._processes[tid]
            self._names.pop(tid, None)
        return now

    def labels(self, tid: int) -> tuple[str, ...]:
        """Return the labels of a thread that are shown."""
        if not self._shown:
            return ()
        if tid not in self._processes:
            self._processes[tid] = self._files.process(tid)
        pid = self._processes[tid]
        named = tid if "tid" in self._shown else pid
        if named not in self._names:
            self._names[named] = self._files.name(named)
        known = {"tid": str(tid), "pid": str(pid), "comm": name_text(self._names[named])}
        return tuple(known[label] for label in self._shown)

    def _handle(self, until: int | None = None) -> None:
        """Handle what waits, up to a moment."""
        waiting, self._waiting = self._waiting, []
        for time_, record in waiting:
            if until is not None and time_ > until:
                self._waiting.append((time_, record))
            elif record is None:
                self.times.lost(max(time_, self._start))
            elif time_ >= self._start:
                self._handlers[record[LAYOUT_ID]](record)

    def _switched(self, record: Record, prev: int, state: int, comm: bytes, after: int) -> None:
        time_ = record[TIME]
        found = self._stacks.pop(id(record), None)
        if prev in self.times:
            if self._shown and self._names.get(prev) != comm:
                self._names[prev] = comm
            self.times.switched_away(
                prev, time_, state, UNACCOUNTED if found is None else stack_class(cut(found[1]))
            )
        if after in self.times:
            self.times.switched_to(after, time_)

    def _created(self, parent: int, child: int, flags: int) -> None:
        thread = bool(flags & CLONE_THREAD)
        followed = self._scope.follows_threads if thread else self._scope.follows_processes
        if parent in self.times and followed:
            self._born[child] = self._process_of(parent) if thread else child

    def _process_of(self, tid: int) -> int:
        if tid not in self._processes:
            self._processes[tid] = self._files.process(tid)
        return self._processes[tid]

    def _started(self, tid: int, time_: int) -> None:
        if (process := self._born.pop(tid, None)) is not None:
            self._processes[tid] = process
            self._names.pop(tid, None)
            self.times.born(tid, time_)
