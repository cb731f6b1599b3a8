"""The facts of the processes of events, for a person at a terminal."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from kprobe_exporter.config.model import Decode, Label
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.processes import Process, Processes
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.aggregation import RecordFilter
from kprobe_exporter.model.joins import ThreadEvent
from kprobe_exporter.model.records import LAYOUT_ID, OF_THREADS, TID, TIME, Batch, Layout, Record
from kprobe_exporter.model.specs import BY_THREAD, OF_EXIT, OF_PROCESS, OF_THREAD, Decoder
from kprobe_exporter.model.values import Value
from kprobe_exporter.plan import Kernel
from kprobe_exporter.probing.thread_tracepoints import (
    CGROUP_EVENTS,
    CHANGES_OF_THREADS,
    EXIT_EVENTS,
    PROCESS_EVENTS,
    STARTED,
    UNKNOWN_CODES,
    Handle,
    OwnTracepoints,
    handlers,
    process_handlers,
    thread_events,
)
from kprobe_exporter.tracefs.instance import Instance

log = logging.getLogger(__name__)

FactOf: TypeAlias = Callable[[Record, str], Value]
"""Returns one of OF_PROCESS of a record's process, or its cgroup; None if it is unknown."""

FactsOf: TypeAlias = Callable[[Record], Mapping[str, int | float | str | None]]
"""Returns the facts of a record's process that are shown, by name."""

NUMBERS = OF_EXIT | {"ppid", "uid"}
"""Facts of processes that are numbers; that of the age is in seconds as its decoder has it."""


class ProcessFacts:
    """The facts ``wanted`` of each record's process: those of OF_PROCESS, and of OF_THREAD its cgroup.

    Without any it costs nothing. Call ``install``, and ``begin`` before the probes are enabled. Each batch
    goes through ``take`` in the stream's order. Then ``of`` answers for its records, until the batch after
    the next. If the kernel's events about threads are not available, facts are read from /proc only.
    """

    def __init__(
        self,
        wanted: Collection[str] = (),
        processes: Processes | None = None,
        cgroups: Cgroups | None = None,
    ) -> None:
        self._processes = processes or Processes()
        self._processes.wanted = OF_PROCESS.intersection(wanted)
        self._cgroups = cgroups or Cgroups()
        of_process, of_exit, of_thread = (
            bool(names.intersection(wanted)) for names in (OF_PROCESS, OF_EXIT, OF_THREAD)
        )
        self._own = OwnTracepoints(PROCESS_EVENTS, "", before_probes=True, wanted=of_process)
        self._own_exits = OwnTracepoints(EXIT_EVENTS, UNKNOWN_CODES, wanted=of_exit)
        self._own_cgroups = OwnTracepoints(CGROUP_EVENTS, "", before_probes=True, wanted=of_thread)
        self._handlers: Mapping[int, Handle] = {}
        self._noted: dict[tuple[int, int], tuple[Process | None, bytes | None]] = {}
        self._noted_before = self._noted
        self._notes = self._own.wanted or self._own_cgroups.wanted

    def install(self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int]) -> dict[Layout, str]:
        """Install the kernel's events about processes; return their layouts, with the systems of the events.

        They wake the reader at once, so that /proc is read while a process of some milliseconds still lives.
        """
        for own in self._each:
            if (reason := own.follow(instance, kernel, layout_ids)) is not None:
                log.log(logging.WARNING if own.without else logging.DEBUG, "%s%s", own.without, reason)
        found = {
            **process_handlers(self._own, self._processes),
            **process_handlers(self._own_exits, self._processes),
            **handlers(self._own_cgroups, self._cgroups),
        }
        self._handlers = {layout.layout_id: handle for layout, handle in found.items()}
        if instance.threads is not None and found:
            with suppress(OSError):  # it is there since 5.0
                instance.threads.write("buffer_percent", "0")
        return {part.layout: part.system for own in self._each for part in own.parts}

    @property
    def _each(self) -> tuple[OwnTracepoints, ...]:
        return self._own, self._own_exits, self._own_cgroups

    def hand_over(self) -> Mapping[int, Handle]:
        """Return, by layout_id, the functions that take the events about processes.

        The caller has to call them in the stream's order, and ``of`` knows nothing.
        """
        self._notes = False
        return self._handlers

    @property
    def changes(self) -> dict[int, ThreadEvent]:
        """By layout_id, what a source takes from these events that adds up by process or by cgroup."""
        each = (thread_events(own, CHANGES_OF_THREADS) for own in self._each)
        return {layout_id: event for found in each for layout_id, event in found.items()}

    def starts(self, started: Callable[[int, int, int], None]) -> dict[int, RecordFilter]:
        """Return the filters that pass the starts of threads on to ``started``, while they are read.

        So the process of a thread is known before its own events need it, however short its life is.
        """
        return {
            part.layout.layout_id: RecordFilter(_teller(part.layout, started), None)
            for part in self._own.parts
            if part.event == STARTED.event
        }

    def begin(self) -> None:
        """Record the events, then read the processes that live."""
        for own in self._each:
            with suppress(ProbeRefused):
                own.enable()
        if self._own.wanted:
            self._processes.scan()
        if self._own_cgroups.wanted:
            self._cgroups.scan()

    def take(self, batch: Batch) -> None:
        """Consume the events about processes, and note the processes of the other records."""
        if any(loss.cpu >= OF_THREADS for loss in batch.losses):
            self._processes.lost()
            self._cgroups.lost(max(loss.end for loss in batch.losses))
        if not self._notes:
            return
        self._noted_before, self._noted = self._noted, {}
        others = []
        for record in batch.records:
            handle = self._handlers.get(record[LAYOUT_ID])
            if handle is not None:
                handle(record)
                continue
            tid, time = record[TID], record[TIME]
            process = self._processes.at(tid, time) if self._own.wanted else None
            path = self._cgroups.path(tid, time) if self._own_cgroups.wanted else None
            self._noted[tid, time] = process, path
            others.append(record)
        batch.records = others

    def of(self, record: Record, name: str) -> Value:
        """Return a fact of a record's process, None if it is unknown; ``age`` is in nanoseconds.

        For a name of OF_THREAD, return the path of its cgroup.
        """
        key = record[TID], record[TIME]
        process, path = self._noted.get(key) or self._noted_before.get(key) or (None, None)
        if name in OF_THREAD:
            return path
        return None if process is None else self._processes.fact_of(process, name, record[TIME])


def facts_of(labels: Iterable[Label]) -> set[str]:
    """Return the facts of processes that labels show, and the names of OF_THREAD."""
    return {label.decode[0].name for label in labels if label.decode} & BY_THREAD


def labels_of_facts(labels: Iterable[Label]) -> tuple[Label, ...]:
    """Return labels that show, by name, the facts of the event's own thread that ``labels`` show."""
    names = dict.fromkeys(
        label.decode[0].name
        for label in labels
        if label.decode and label.field == "tid" and label.decode[0].name in BY_THREAD
    )
    return tuple(Label(name, "tid", (Decode(name),)) for name in names)


def place_of(decode: Decoder, fact: FactOf, record: Record) -> str | None:
    """Return the cgroup of a record's thread, or what has it."""
    path = fact(record, "cgroup")
    return None if path is None else decode(path)


def fact_reader(names: Iterable[str], fact: FactOf) -> FactsOf:
    """Return the function that reads these facts of a record's process for a person."""

    def of(name: str) -> Callable[[Record], int | float | str | None]:
        decode = DECODERS[name](None)
        if name in OF_THREAD:
            return partial(place_of, decode, fact)

        def read(record: Record) -> int | float | str | None:
            value = fact(record, name)
            if isinstance(value, int) and name in NUMBERS:
                return value
            text = None if value is None else decode(value)
            return float(text) if text is not None and name == "age" else text

        return read

    readers = {name: of(name) for name in names}
    return lambda record: {name: read(record) for name, read in readers.items()}


def _teller(layout: Layout, started: Callable[[int, int, int], None]) -> Callable[[Record], bool]:
    child, flags = layout.index("child"), layout.index("flags")

    def tell(record: Record) -> bool:
        started(record[TID], record[child], record[flags])
        return True

    return tell
