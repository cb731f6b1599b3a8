"""The facts of the processes of events, for a person at a terminal."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.identity.processes import Process, Processes
from kprobe_exporter.model.aggregation import RecordFilter
from kprobe_exporter.model.records import LAYOUT_ID, OF_THREADS, TID, TIME, Batch, Layout, Record
from kprobe_exporter.model.values import Value
from kprobe_exporter.plan import Kernel
from kprobe_exporter.probing.thread_tracepoints import (
    PROCESS_EVENTS,
    STARTED,
    OwnTracepoints,
    process_handlers,
)
from kprobe_exporter.tracefs.instance import Instance


class ProcessFacts:
    """The facts ``wanted``, of OF_PROCESS, of each record's process; without any it costs nothing.

    Call ``install``, and ``begin`` before the probes are enabled. Each batch goes through ``take`` in the
    stream's order. Then ``of`` answers for its records, until the batch after the next. Where the kernel's
    events about threads cannot be had, facts are read from /proc only.
    """

    def __init__(self, wanted: Collection[str] = (), processes: Processes | None = None) -> None:
        self._processes = processes or Processes()
        self._processes.wanted = wanted
        self._own = OwnTracepoints(PROCESS_EVENTS, "", wanted=bool(wanted))
        self._handlers: Mapping[int, Callable[[Record], None]] = {}
        self._noted: dict[tuple[int, int], Process | None] = {}
        self._noted_before = self._noted

    def install(self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int]) -> dict[Layout, str]:
        """Install the kernel's events about processes; return their layouts, with the systems of the events.

        They wake the reader at once, so that /proc is read while a process of some milliseconds still lives.
        """
        self._own.follow(instance, kernel, layout_ids)
        handlers = process_handlers(self._own, self._processes)
        self._handlers = {layout.layout_id: handle for layout, handle in handlers.items()}
        if instance.threads is not None and self._own.parts:
            with suppress(OSError):  # it is there since 5.0
                instance.threads.write("buffer_percent", "0")
        return {part.layout: part.system for part in self._own.parts}

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
        with suppress(ProbeRefused):
            self._own.enable()
        if self._own.wanted:
            self._processes.scan()

    def take(self, batch: Batch) -> None:
        """Consume the events about processes, and note the processes of the other records."""
        if not self._own.wanted:
            return
        if any(loss.cpu >= OF_THREADS for loss in batch.losses):
            self._processes.lost()
        self._noted_before, self._noted = self._noted, {}
        others = []
        for record in batch.records:
            handle = self._handlers.get(record[LAYOUT_ID])
            if handle is not None:
                handle(record)
                continue
            self._noted[record[TID], record[TIME]] = self._processes.at(record[TID], record[TIME])
            others.append(record)
        batch.records = others

    def of(self, record: Record, name: str) -> Value:
        """Return a fact of a record's process, None if it is unknown; ``age`` is in nanoseconds."""
        key = record[TID], record[TIME]
        process = self._noted.get(key) or self._noted_before.get(key)
        return None if process is None else self._processes.fact_of(process, name, record[TIME])


def _teller(layout: Layout, started: Callable[[int, int, int], None]) -> Callable[[Record], bool]:
    child, flags = layout.index("child"), layout.index("flags")

    def tell(record: Record) -> bool:
        started(record[TID], record[child], record[flags])
        return True

    return tell
