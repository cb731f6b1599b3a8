"""The view ``classes`` of a tool: where the time of a scope's threads went in each interval, by class."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.stack_classes import UNACCOUNTED, stack_class
from kprobe_exporter.aggregate.stack_counts import cut
from kprobe_exporter.aggregate.thread_times import Observed, ThreadTimes, Totals
from kprobe_exporter.config.model import Label, Metric, Probe
from kprobe_exporter.errors import UsageError, name_text
from kprobe_exporter.identity.procfs import KTHREADD, host_proc
from kprobe_exporter.identity.thread_sets import processes, threads_of
from kprobe_exporter.identity.threads import CLONE_THREAD
from kprobe_exporter.model.records import LAYOUT_ID, TID, TIME, Batch, Layout, Record
from kprobe_exporter.model.snapshot import Family
from kprobe_exporter.model.stacks import Stack
from kprobe_exporter.probing.scope import LEFT, RECORDED, Scope
from kprobe_exporter.tools.columns import Column
from kprobe_exporter.trace.capture import NAMESPACE, collected
from kprobe_exporter.trace.interval_numbers import Interval
from kprobe_exporter.trace.loops import Screen, run_until_end, wants_color
from kprobe_exporter.trace.output import Gone
from kprobe_exporter.trace.rows import Display
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.trace.tables import TableView
from kprobe_exporter.tracefs.profile import buffer_stats

SWITCH, WAKING, WAKEUP, STARTED, NEW = "switch", "waking", "wakeup", "started", "new_thread"
"""The probes that a tool with this view has."""

TIME_OF_CLASS, TIME_OF_ALL = "time_seconds_total", "threads_seconds_total"
"""The numbers that a column shows: the time of a class, and that of all classes with the same labels."""

LABELS = ("tid", "pid", "comm")
"""The labels that a column may show, besides ``class``."""

SLEEPING = (b"S", b"D", b"I", b"T", b"t", b"P")
"""States of proc_pid_stat(5) of a thread that waits."""

_FRAME = re.compile(rb"^\[<[^>]*>\] ([^+\s]+)", re.MULTILINE)
"""A line of /proc/TID/stack: ``[<0>] pipe_read+0x34d/0x430`` (proc_pid_stack() in fs/proc/base.c)."""


class ThreadFiles:
    """The facts of /proc about threads, which events name by their ids on the host."""

    def __init__(self, proc: Path | None) -> None:
        self._proc = proc

    def observed(self, tid: int) -> Observed:
        """Return what a thread does now."""
        state = self._stat(tid)[:1]
        if state in SLEEPING:
            frames = self._stack(tid)
            return Observed(time.monotonic_ns(), stack_class(frames) if frames else UNACCOUNTED)
        return Observed(time.monotonic_ns(), None, self.ran(tid) if state == b"R" else None)

    def ran(self, tid: int) -> int | None:
        """Return the nanoseconds that a thread had a CPU in all (Documentation/scheduler/sched-stats)."""
        with suppress(ValueError):
            return int(self._read(tid, "schedstat").partition(b" ")[0])
        return None

    def lives(self, tid: int) -> bool:
        """Whether a thread has not ended."""
        return self._stat(tid)[:1] not in (b"", b"Z", b"X")

    def process(self, tid: int) -> int:
        """Return the process of a thread; that of an unknown one is itself."""
        found = re.search(rb"^Tgid:\s*([0-9]+)$", self._read(tid, "status"), re.MULTILINE)
        return int(found[1]) if found else tid

    def name(self, tid: int) -> bytes:
        """Return the name of a thread, nothing of one that has ended."""
        return self._read(tid, "comm").removesuffix(b"\n")

    def _stat(self, tid: int) -> bytes:
        return self._read(tid, "stat").rpartition(b") ")[2]

    def _stack(self, tid: int) -> Stack:
        return tuple(_FRAME.findall(self._read(tid, "stack")))

    def _read(self, tid: int, file: str) -> bytes:
        if self._proc is not None:
            with suppress(OSError):
                return (self._proc / str(tid) / file).read_bytes()
        return b""


class ScopeOfThreads:
    """Which threads are in the scope of a session now, by their ids on the host."""

    def __init__(self, session: TraceSession, scope: Scope, proc: Path | None) -> None:
        self._session, self._proc, self._everything = session, proc, not scope.narrows
        self._process = None if scope.children else scope.pid
        self.follows_threads = scope.tid is None
        self.follows_processes = self.follows_threads and self._process is None

    def follow(self) -> None:
        """Have the kernel record new threads of a process from their first moment."""
        if self._process is not None:
            self._session.instance.write("options/event-fork", "1")

    def threads(self) -> set[int]:
        """Return the threads that the kernel records; of a process alone its own."""
        if self._everything:
            proc = self._proc or Path("/proc")
            return threads_of(proc, processes(proc))
        instance = self._session.instance
        listed = set(map(int, instance.read(RECORDED).split()))
        if instance.files.exists(f"{instance.path}/{LEFT}"):
            listed -= set(map(int, instance.read(LEFT).split()))
        if self._process is not None:
            found = threads_of(Path("/proc"), [self._process])
            translated = self._session.threads.translated
            listed &= {translated.get(tid, tid) for tid in found}
        return listed - {KTHREADD}


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


def fetching(probe: Probe) -> Probe:
    """Return the probe so that each event is recorded, with what it fetches."""
    fetched = [name for attach in probe.attach for name in attach.fetch]
    labels = tuple(Label(name, name) for name in dict.fromkeys(fetched))
    metric = Metric("counter", "total", "", labels=labels)
    return replace(probe, aggregate="events", stack=probe.name == SWITCH, metrics=(metric,))


def shown_labels(columns: Sequence[Column]) -> list[str]:
    """Return the labels that columns show, besides the class."""
    return [column.source for column in columns if column.source in LABELS]


def show_classes(
    session: TraceSession,
    probes: Sequence[Probe],
    columns: Sequence[Column],
    sort: str | None,
    shown: Display,
    scope: Scope,
) -> int:
    """Write where the time of the scope's threads went, each interval; return the number of lost events.

    Raises UsageError for a scope by names, which the events of other threads do not have.
    """
    if scope.comm is not None:
        raise UsageError(
            "--comm: another thread wakes a thread, so a name cannot choose these events: give -p, -L, -c, "
            "--uid, --cgroup, --container or --pod."
        )
    proc, labels = host_proc(), shown_labels(columns)
    members = ScopeOfThreads(session, scope, proc)
    members.follow()
    classes = TimeClasses(members, ThreadFiles(proc), labels)
    view, screen = TableView("counts", columns, sort, None, shown), Screen(session.out, over=False)
    before: Interval | None = None
    begun = 0
    with collected(
        session,
        [fetching(probe) for probe in probes],
        classes.consume,
        single=True,
        all_fields=True,
        any_thread=True,
    ) as capture:
        for plan, attached in zip(capture.plans, capture.attached, strict=True):
            classes.add(plan.probe.name, attached.layout)
        assert capture.pipe is not None
        pipe = capture.pipe

        def started() -> None:
            nonlocal begun, before
            begun = time.monotonic_ns()
            classes.begin(begun)
            before = _interval((), 0.0, None)

        def show(passed: float = 0.0) -> None:
            nonlocal before
            now = classes.flush(lambda: pipe.empty(last=False))
            here = _interval(families(labels, *classes.totals.take()), (now - begun) / 1e9, before)
            before = _interval((), here.at, None)
            moment = datetime.now(UTC).astimezone()
            screen.draw(view.lines(here, (), moment, color=wants_color(session.out)))

        with suppress(Gone):
            run_until_end(session, capture, show, interval=shown.interval, started=started, before_pause=show)
        stats = buffer_stats(session.instance.files, session.instance.path)
    return stats.overrun + stats.dropped


def families(
    labels: Sequence[str],
    by_class: Mapping[tuple[str, ...], int],
    of_all: Mapping[tuple[str, ...], int],
) -> tuple[Family, ...]:
    """Return the numbers of an interval, in nanoseconds, as metrics."""
    names = (*labels, "class")
    parts: dict[tuple[str, ...], Any] = dict(by_class)
    whole: dict[tuple[str, ...], Any] = {key: of_all[key[:-1]] for key in by_class}
    return (
        Family(f"{NAMESPACE}_{TIME_OF_CLASS}", "counter", "", names, parts),
        Family(f"{NAMESPACE}_{TIME_OF_ALL}", "counter", "", names, whole),
    )


def _interval(found: tuple[Family, ...], at: float, before: Interval | None) -> Interval:
    return Interval(Numbers(found, {}, {}, {}, {}, {}, {}, 0), {}, at, before, NAMESPACE, {}, {})
