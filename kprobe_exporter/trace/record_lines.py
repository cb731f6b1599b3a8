"""Writes records as lines, each with its stack, which may come after the record."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

from kprobe_exporter.aggregate.attached_layout import UNKNOWN
from kprobe_exporter.aggregate.program_stacks import PATIENCE, ProgramStacks
from kprobe_exporter.aggregate.recipes import passes
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import LAYOUT_ID, Batch, Layout, Record
from kprobe_exporter.model.stacks import Addresses

MOST_WAITING = 4096
"""The largest number of events that wait for their stacks."""

Frames: TypeAlias = tuple[bytes, ...]
Show: TypeAlias = Callable[[Record, Frames], str]
"""Returns the lines of a record with its stack, which is empty without one."""


class TraceClock:
    """Converts the instance's times to wall time; the offset is that of the start."""

    def __init__(self, offset: int | None = None) -> None:
        self._offset = time.time_ns() - time.monotonic_ns() if offset is None else offset

    def time(self, moment: int) -> datetime:
        """Return the local wall time of a moment in nanoseconds of the instance's clock."""
        return datetime.fromtimestamp((moment + self._offset) / 1e9, UTC).astimezone()


def name_programs(programs: ProgramStacks, batch: Batch) -> None:
    """Put the stacks of programs among a batch's stacks, with names.

    A stack whose names are not known after PATIENCE seconds is the one frame ``[unknown]``.
    """
    found: dict[tuple[int, Addresses], Sequence[bytes]] = {}
    for key in dict.fromkeys((process, addresses) for _, process, addresses in batch.user_stacks):
        process, addresses = key
        # A return address is that of the next instruction, which may belong to another function.
        places = [address - bool(at) for at, address in enumerate(addresses)]
        then = partial(found.__setitem__, key)
        if not programs.name(process, places, then):  # as many of one process wait as may
            programs.settle(PATIENCE)
            programs.name(process, places, then)
    programs.settle(PATIENCE)
    for record, process, addresses in batch.user_stacks:
        batch.stacks.append((record, tuple(found.get((process, addresses), (UNKNOWN,)))))


class Lines:
    """Writes each record as lines. If ``stacks``, an event waits for its stack for at most one batch.

    At most ``most`` records are written, None for all; ``finished`` is called after the last one. Not
    thread-safe.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        *,
        stacks: bool,
        most: int | None = None,
        finished: Callable[[], object] = lambda: None,
    ) -> None:
        self._write = write
        self._stacks = stacks
        self._left, self._finished = most, finished
        self._shows: dict[int, Show] = {}
        self._passes: dict[int, Callable[[Record], bool]] = {}
        self._waiting: list[Record] = []
        self._begun: dict[int, tuple[Record, Frames]] = {}
        self._firsts: dict[int, Record] = {}

    def add(self, layout: Layout, show: Show, *conditions: Where | None) -> None:
        """Register a layout before its records come; the kernel could not evaluate the ``conditions``."""
        self._shows[layout.layout_id] = show
        tests = [passes(layout, condition) for condition in conditions if condition is not None]
        if tests:
            self._passes[layout.layout_id] = lambda record: all(test(record) for test in tests)

    def joined(self, first: Record, record: Record) -> None:
        """Give a joined record, which is to come, the stack of its first half."""
        self._firsts[id(record)] = first

    def consume(self, batch: Batch) -> None:
        """Write the events that are complete."""
        if not self._stacks:
            self._put(batch.records, {})
            return
        for record, stack in batch.stacks:
            if record[LAYOUT_ID] not in self._shows:  # the first half of a call or a pair
                self._begun[id(record)] = record, stack
        for one in list(self._begun)[:-MOST_WAITING]:
            del self._begun[one]
        frames = {id(record): stack for record, stack in batch.stacks}
        for record in (*self._waiting, *batch.records):
            first = self._firsts.get(id(record))
            if first is not None and id(first) in self._begun:
                _, frames[id(record)] = self._begun.pop(id(first))
                del self._firsts[id(record)]
        ready = self._waiting
        if len(batch.records) > MOST_WAITING:
            ready, batch.records = ready + batch.records[:-MOST_WAITING], batch.records[-MOST_WAITING:]
        there = [record for record in batch.records if id(record) in frames]
        last = batch.records.index(there[-1]) + 1 if there else 0
        self._waiting = batch.records[last:]
        self._put([*ready, *batch.records[:last]], frames)

    def finish(self) -> None:
        """Write the waiting events: no further stacks will come."""
        self._put(self._waiting, {})
        self._waiting = []

    def _put(self, records: list[Record], frames: Mapping[int, Frames]) -> None:
        for record in records if self._firsts else ():
            self._firsts.pop(id(record), None)
        if passes := self._passes:
            records = [one for one in records if (test := passes.get(one[LAYOUT_ID])) is None or test(one)]
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        lines = [self._shows[record[LAYOUT_ID]](record, frames.get(id(record), ())) for record in records]
        if lines:
            self._write(("\n".join(lines) + "\n").encode(errors="backslashreplace"))
        if self._left == 0:
            self._finished()
