"""The time of threads by class: which threads are watched, their labels, and the sums of an interval."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kprobe_exporter.aggregate.stack_classes import class_of
from kprobe_exporter.errors import name_text
from kprobe_exporter.identity.thread_files import ThreadFiles
from kprobe_exporter.identity.threads import CLONE_THREAD
from kprobe_exporter.model.joins import times_plan
from kprobe_exporter.model.records import LAYOUT_ID, TID, Batch, Join, Layout, Record
from kprobe_exporter.model.thread_times import SchedulerEvent, ThreadState, ThreadTimesPlan, Watched
from kprobe_exporter.source.binary import ThreadWatcher
from kprobe_exporter.trace.threads_in_scope import ScopeOfThreads

NEW, RENAMED = "new_thread", "renamed"
"""The probes of the tool that tell of threads and their names."""

FIELDS: Mapping[str, tuple[str, ...]] = {NEW: ("child", "flags", "name"), RENAMED: ("task", "name")}

MIN_RUN_NS = 20_000_000
"""Nanoseconds after which a thread that runs has more run time in /proc: several ticks of the timer."""


class TimeClasses:
    """Adds up the parts of threads' time that a source delivers, and knows the threads' labels."""

    def __init__(self, scope: ScopeOfThreads, files: ThreadFiles, labels: Sequence[str]) -> None:
        self._scope, self._files, self._shown = scope, files, labels
        self._names: dict[int, bytes] = {}
        self._processes: dict[int, int] = {}
        self._handlers: dict[int, Callable[[Record], None]] = {}
        self._by_class: Counter[tuple[str, ...]] = Counter()
        self._runnable: dict[int, tuple[int, int]] = {}  # when that was seen, and how long each had run

    def plan(self, join: Join, layouts: Mapping[str, Layout]) -> ThreadTimesPlan:
        """Return how the source adds up the time, from these events and those of the probe NEW."""
        for name, handler in ((NEW, self._created), (RENAMED, self._renamed)):
            places = [layouts[name].index(field) for field in FIELDS[name]]
            self._handlers[layouts[name].layout_id] = partial(_with_fields, handler, places)
        created = {layouts[NEW].layout_id: SchedulerEvent("created", FIELDS[NEW][:2])}
        plan = times_plan(join, self._scope.follows, by_cgroup=False)
        return plan._replace(events={**plan.events, **created})

    def begin(self, pipe: ThreadWatcher, now: int) -> None:
        """Begin with the threads of the scope."""
        threads = [self._files.observed(tid, now) for tid in self._scope.threads()]
        pipe.watch(threads)
        for one in threads:
            if one.state is ThreadState.WAITING and (ran := self._files.ran(one.tid)) is not None:
                self._runnable[one.tid] = one.seen, ran

    def consume(self, batch: Batch) -> None:
        """Take a batch: names and processes of threads, and then parts of their time."""
        for record in batch.records:
            if (handle := self._handlers.get(record[LAYOUT_ID])) is not None:
                handle(record)
        for part in batch.thread_times:
            self._by_class[(*self.labels(part.tid), class_of(part))] += part.nanoseconds

    def flush(self, pipe: ThreadWatcher, empty: Callable[[], None]) -> int:
        """Add the time of all threads until now, and return this moment; ``empty`` delivers all records.

        The scope is listed before that, so that all who ended before have reported it. A thread that is gone
        without that has left the scope, or changed its id.
        """
        known, here = pipe.watched(), self._scope.threads()
        now = time.monotonic_ns()
        self._settle(pipe, now)
        empty()
        for tid in known.difference(here).intersection(pipe.watched()):
            pipe.end_thread(tid, now)
        pipe.cut_times(now)
        empty()
        left = pipe.watched()
        pipe.watch([Watched(tid, now) for tid in here.difference(left) if self._files.lives(tid)])
        for tid in self._processes.keys() - left:
            del self._processes[tid]
            self._names.pop(tid, None)
        return now

    def take(self) -> Counter[tuple[str, ...]]:
        """Return the nanoseconds by the labels and the class since the last call."""
        found, self._by_class = self._by_class, Counter()
        return found

    def labels(self, tid: int) -> tuple[str, ...]:
        """Return the labels of a thread that are shown."""
        if not self._shown:
            return ()
        pid = self._process_of(tid)
        named = tid if "tid" in self._shown else pid
        if named not in self._names:
            self._names[named] = self._files.name(named)
        known = {"tid": str(tid), "pid": str(pid), "comm": name_text(self._names[named])}
        return tuple(known[label] for label in self._shown)

    def _settle(self, pipe: ThreadWatcher, now: int) -> None:
        """Tell what threads did that were runnable and had no event: they ran all the time, or never."""
        for tid, (seen, before) in [*self._runnable.items()]:
            if now - seen < MIN_RUN_NS:
                continue
            del self._runnable[tid]
            if (ran := self._files.ran(tid)) is not None:
                state = ThreadState.RUNNING if ran > before else ThreadState.WAITING
                pipe.watch([Watched(tid, seen, state, seen, certain=True)])

    def _created(self, parent: int, child: int, flags: int, name: bytes) -> None:
        self._processes[child] = self._process_of(parent) if flags & CLONE_THREAD else child
        self._names[child] = name

    def _renamed(self, _: int, tid: int, name: bytes) -> None:
        self._names[tid] = name

    def _process_of(self, tid: int) -> int:
        if tid not in self._processes:
            self._processes[tid] = self._files.process(tid)
        return self._processes[tid]


def _with_fields(handler: Callable[..., None], places: Sequence[int], record: Record) -> None:
    """Call ``handler`` with the thread of a record and the values at these places."""
    handler(record[TID], *[record[place] for place in places])
