"""Counts the stacks that come with records: of single events, and of the first events of calls and pairs."""

from collections.abc import Callable
from typing import NamedTuple

from kprobe_exporter.aggregate.recipes import Getter, getter, passes
from kprobe_exporter.aggregate.stacks import StackCounts
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.stacks import Stack, Weight
from kprobe_exporter.model.values import LAYOUT_ID, Batch, Join, Layout, Record

MOST_OPEN = 16_384
"""Stacks that are kept for calls and pairs that are open. Of more, the oldest go, and are lost."""


class _Weigher:
    """Where the stacks of a layout's records are counted, and by what they are weighed.

    ``expected`` are the records that came, ``due`` those of earlier batches, ``seen`` those whose stack came,
    and ``missing`` those that count as lost.
    """

    def __init__(
        self, counts: StackCounts, only: Callable[[Record], bool] | None, weight: Getter | None
    ) -> None:
        self.counts, self._passes, self._weight = counts, only, weight
        self.expected = self.due = self.seen = self.missing = 0

    def passes(self, record: Record) -> bool:
        return self._passes is None or self._passes(record)

    def weigh(self, record: Record) -> Weight | None:
        """Return what a record that passes adds to its stack; None if it is an error, which has no weight."""
        value = 0 if self._weight is None else self._weight(record)
        if not isinstance(value, int):
            self.counts.lose(1)
            return None
        return Weight(1, value) if value >= 0 else None  # the kernel's trigger leaves out errors, too

    def count_missing(self) -> None:
        """Count the records before the last batch that have no stack by now as lost."""
        missing = self.due - self.seen
        if missing > self.missing:
            self.counts.lose(missing - self.missing)
            self.missing = missing
        self.due = self.expected


class RecordedStacks:
    """Counts stacks, each with its event or when its call or pair has ended. The reader's thread owns it.

    A stack comes after its event in the buffer, but may be delivered one batch earlier or later. An event
    without a stack by then counts as lost. Where text breaks off in a stack, its first part counts. It costs
    about 3 µs an event.
    """

    def __init__(self) -> None:
        self._single: dict[int, _Weigher] = {}
        self._joined: dict[int, _Weigher] = {}  # by the layout_id of the joined record
        self._begins: set[int] = set()
        self._open: dict[int, tuple[Record, Stack]] = {}  # by id() of a first event, which it keeps
        self._latest: dict[int, Record] = {}  # those whose stacks came with the last batch
        self._waiting: dict[int, _Waiting] = {}  # calls and pairs for whose stack there is hope
        self._overdue: dict[int, _Waiting] = {}  # the same of the batch before

    def add(self, layout: Layout, join: Join | None, counts: StackCounts, only: Where | None) -> None:
        """Count the stacks of a layout's records in ``counts``. ``only`` is the filter of the agent."""
        weight = None if counts.weigh is None else getter(layout, counts.weigh)
        weigher = _Weigher(counts, None if only is None else passes(layout, only), weight)
        if join is None:
            self._single[layout.layout_id] = weigher
        else:
            self._joined[layout.layout_id] = weigher
            self._begins |= {begin.layout_id for begin in join.begins}

    def remove(self, layout: Layout, join: Join | None) -> None:
        """Count the stacks of these records no more."""
        self._single.pop(layout.layout_id, None)
        self._joined.pop(layout.layout_id, None)
        if join is not None:
            begins = {begin.layout_id for begin in join.begins}
            self._begins -= begins
            self._open = {key: one for key, one in self._open.items() if one[0][LAYOUT_ID] not in begins}

    def joined(self, first: Record, record: Record) -> None:
        """Take a call or a pair that has ended; its first event's stack is known, or still comes."""
        _, stack = self._open.pop(id(first), (first, None))
        weigher = self._joined.get(record[LAYOUT_ID])
        if weigher is None or not weigher.passes(record) or (weight := weigher.weigh(record)) is None:
            return
        if stack is None:
            self._waiting[id(first)] = _Waiting(first, weigher, weight)
        else:
            weigher.counts.add(stack, weight)

    def take(self, batch: Batch) -> None:
        """Take the stacks of a batch, after its calls and pairs were joined."""
        single = self._single
        for record in batch.records if single else ():
            if (weigher := single.get(record[LAYOUT_ID])) is not None:
                weigher.expected += weigher.passes(record)
        before, self._latest = self._latest, {id(record): record for record, _ in batch.stacks}
        for record, stack in batch.stacks:
            if id(record) in before:
                continue
            if (weigher := single.get(record[LAYOUT_ID])) is not None:
                if weigher.passes(record):
                    weigher.seen += 1
                    if (weight := weigher.weigh(record)) is not None:
                        weigher.counts.add(stack, weight)
            elif record[LAYOUT_ID] in self._begins:
                self._begun(record, stack)
        for weigher in single.values():
            weigher.count_missing()
        for late in self._overdue.values():
            late.weigher.counts.lose(1)
        self._overdue, self._waiting = self._waiting, {}

    def _begun(self, record: Record, stack: Stack) -> None:
        """Take the stack of the first event of a call or pair, which may have ended already."""
        waiting = self._waiting.pop(id(record), None) or self._overdue.pop(id(record), None)
        if waiting is not None:
            waiting.weigher.counts.add(stack, waiting.weight)
            return
        self._open[id(record)] = record, stack
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]


class _Waiting(NamedTuple):
    """A call or a pair that has ended before its first event's stack was delivered."""

    first: Record  # kept, so that no other record has its id()
    weigher: _Weigher
    weight: Weight
