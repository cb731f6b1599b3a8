"""Counts the stacks that come with records: of single events, and of the first events of calls and pairs."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.aggregate.recipes import Getter, getter, passes
from kprobe_exporter.aggregate.stack_counts import StackCounts
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.records import LAYOUT_ID, Batch, Join, Layout, Record
from kprobe_exporter.model.stacks import Addresses, Stack, StackLoss, Weight

MOST_OPEN = 16_384
"""Stacks that are kept for calls and pairs that are open. Beyond that, the oldest go, and are lost."""


class _Weigher:
    """The counts to which the stacks of a layout's records are added, and the weight of each.

    ``of_kernel``: the kernel's stack comes, too, which is counted with the program's before it.
    ``expected`` are the records that came, ``due`` those of earlier batches, ``seen`` those whose stack came,
    and ``missing`` those that count as lost.
    """

    def __init__(
        self,
        counts: StackCounts,
        only: Callable[[Record], bool] | None,
        weight: Getter | None,
        of_kernel: bool,
    ) -> None:
        self.counts, self._passes, self._weight, self.of_kernel = counts, only, weight, of_kernel
        self.expected = self.due = self.seen = self.missing = 0

    def passes(self, record: Record) -> bool:
        return self._passes is None or self._passes(record)

    def weigh(self, record: Record) -> Weight | None:
        """Return what a record that passes adds to its stack; None if it is an error, which has no weight."""
        value = 0 if self._weight is None else self._weight(record)
        if not isinstance(value, int):
            self.counts.lose(1, StackLoss.ABSENT)
            return None
        return Weight(1, value) if value >= 0 else None  # the kernel's trigger leaves out errors, too

    def count_missing(self) -> None:
        """Count the records before the last batch that have no stack by now as lost."""
        missing = self.due - self.seen
        if missing > self.missing:
            self.counts.lose(missing - self.missing, StackLoss.ABSENT)
            self.missing = missing
        self.due = self.expected


class _Seen(NamedTuple):
    """The stack of a record: of the kernel, and of a process, None if there is none or it is not wanted."""

    record: Record  # kept, so that no other record has its id()
    kernel: Stack
    program: tuple[int, Addresses] | None


class RecordedStacks:
    """Counts stacks, each with its event or when its call or pair has ended. The reader's thread owns it.

    A stack comes after its event in the buffer, but may be delivered one batch earlier or later, and a
    program's before the kernel's. An event without a stack by then counts as lost. If text breaks off in a
    stack, its first part counts. It costs about 3 µs an event.

    A source that adds up records counts their stacks as well, in 0.2 µs an event, and delivers the sums: each
    stack waits with its event in engine/queue.c.
    """

    def __init__(self, programs: ProgramStacks) -> None:
        self._programs = programs
        self._single: dict[int, _Weigher] = {}
        self._joined: dict[int, _Weigher] = {}  # by the layout_id of the joined record
        self._begins: dict[int, bool] = {}  # by layout_id: whether the kernel's stack comes
        self._open: dict[int, _Seen] = {}  # by id() of a first event
        self._latest: dict[int, Record] = {}  # those whose stacks came with the last batch
        # Those of programs that came with the last batch, and wait for the kernel's.
        self._of_programs: dict[int, tuple[Record, int, Addresses]] = {}
        self._waiting: dict[int, _Waiting] = {}  # calls and pairs for whose stack there is hope
        self._overdue: dict[int, _Waiting] = {}  # the same of the batch before

    def add(self, layout: Layout, join: Join | None, counts: StackCounts, only: Where | None) -> None:
        """Count the stacks of a layout's records in ``counts``. ``only`` is the filter of the agent."""
        weight = None if counts.weigh is None else getter(layout, counts.weigh)
        weigher = _Weigher(counts, None if only is None else passes(layout, only), weight, layout.stack)
        if join is None:
            self._single[layout.layout_id] = weigher
        else:
            self._joined[layout.layout_id] = weigher
            self._begins |= {begin.layout_id: begin.stack for begin in join.begins}

    def remove(self, layout: Layout, join: Join | None) -> None:
        """Count the stacks of these records no more."""
        self._single.pop(layout.layout_id, None)
        self._joined.pop(layout.layout_id, None)
        if join is not None:
            begins = {begin.layout_id for begin in join.begins}
            self._begins = {one: kernel for one, kernel in self._begins.items() if one not in begins}
            self._open = {key: one for key, one in self._open.items() if one.record[LAYOUT_ID] not in begins}

    def joined(self, first: Record, record: Record) -> None:
        """Take a call or a pair that has ended; its first event's stack is known, or still comes."""
        seen = self._open.pop(id(first), None)
        weigher = self._joined.get(record[LAYOUT_ID])
        if weigher is None or not weigher.passes(record) or (weight := weigher.weigh(record)) is None:
            return
        if seen is None:
            self._waiting[id(first)] = _Waiting(first, weigher, weight)
        else:
            self._count(weigher, seen, weight)

    def take(self, batch: Batch) -> None:
        """Take the stacks of a batch, after its calls and pairs were joined."""
        single = self._single
        for record in batch.records if single else ():
            if (weigher := single.get(record[LAYOUT_ID])) is not None:
                weigher.expected += weigher.passes(record)
        before = self._latest
        self._latest = {id(record): record for record, _ in batch.stacks}
        for seen in self._stacks_of(batch):
            if id(seen.record) not in before:
                self._take(seen)
        for weigher in single.values():
            weigher.count_missing()
        for late in self._overdue.values():
            late.weigher.counts.lose(1, StackLoss.ABSENT)
        self._overdue, self._waiting = self._waiting, {}
        self._take_tallies(batch)

    def _take_tallies(self, batch: Batch) -> None:
        """Take the stacks that the source has counted, of probes that are still there."""
        weighers = self._single | self._joined
        for layout_id, kernel, process, addresses, weight in batch.stack_tallies:
            if (weigher := weighers.get(layout_id)) is not None:
                self._programs.add(weigher.counts, kernel, process, addresses, weight)
        for layout_id, hits in batch.without_stack.items():
            if (weigher := weighers.get(layout_id)) is not None:
                weigher.counts.lose(hits, StackLoss.ABSENT)

    def _stacks_of(self, batch: Batch) -> Iterator[_Seen]:
        """Yield the stacks that are complete, those of programs with those of the kernel that follow them."""
        before, self._of_programs = self._of_programs, {}
        for record, process, addresses in batch.user_stacks:
            weigher = self._single.get(record[LAYOUT_ID])
            if self._begins.get(record[LAYOUT_ID], weigher is not None and weigher.of_kernel):
                self._of_programs[id(record)] = record, process, addresses
            else:
                self._latest[id(record)] = record
                yield _Seen(record, (), (process, addresses))
        for record, kernel in batch.stacks:
            found = self._of_programs.get(id(record)) or before.get(id(record))
            yield _Seen(record, kernel, None if found is None else found[1:])

    def _take(self, seen: _Seen) -> None:
        record = seen.record
        if (weigher := self._single.get(record[LAYOUT_ID])) is not None:
            if weigher.passes(record):
                weigher.seen += 1
                if (weight := weigher.weigh(record)) is not None:
                    self._count(weigher, seen, weight)
        elif record[LAYOUT_ID] in self._begins:
            self._begun(seen)

    def _begun(self, seen: _Seen) -> None:
        """Take the stack of the first event of a call or pair, which may have ended already."""
        key = id(seen.record)
        waiting = self._waiting.pop(key, None) or self._overdue.pop(key, None)
        if waiting is not None:
            self._count(waiting.weigher, seen, waiting.weight)
            return
        self._open[key] = seen
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _count(self, weigher: _Weigher, seen: _Seen, weight: Weight) -> None:
        if seen.program is None:
            weigher.counts.add(seen.kernel, weight)
        else:
            self._programs.add(weigher.counts, seen.kernel, *seen.program, weight)


class _Waiting(NamedTuple):
    """A call or a pair that has ended before its first event's stack was delivered."""

    first: Record  # kept, so that no other record has its id()
    weigher: _Weigher
    weight: Weight
