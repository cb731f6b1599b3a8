"""Joins two events into one record: the entry and the return of a call, or the events of a pair.

Two events are joined only if they provably belong together. A stack grows down: a call that is open at or
below a new entry has returned without an event. A return is at a fixed distance from its entry. Events
without such a proof are counted as unpaired: no duration is better than a wrong one.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from kprobe_exporter.aggregate.ended_threads import EndedThreads
from kprobe_exporter.aggregate.matching import ByKey, ByStack, Make, joiner, of_half
from kprobe_exporter.aggregate.open_calls import NEVER, NestedCalls, OpenCalls
from kprobe_exporter.aggregate.recipes import getter, passes
from kprobe_exporter.model.records import LAYOUT_ID, TIME, Batch, Join, Layout, Record, is_nested

Take: TypeAlias = Callable[[Record], Record | None]  # handles a record; returns the record to keep, if any

OnRecord: TypeAlias = Callable[[Record, Record, list[Record]], None]
"""Called with the first half and the joined record of a call, or with the record of a single event twice; and
with the first halves of the calls with ``ended`` that enclose it, the innermost first."""


SECOND = 10**9  # nanoseconds


class _Outstanding:
    """Counts the open first halves of a join that are outstanding; ``here``: the pairing joins them."""

    def __init__(self, join: Join, opened: OpenCalls) -> None:
        assert join.outstanding is not None
        self._layout_id, self._opened, self.here = join.layout.layout_id, opened, False
        self._older_than, weigh = join.outstanding
        begins = [replace(begin, computed=join.layout.computed) for begin in join.begins]
        self._weights = weigh and {begin.layout_id: getter(begin, weigh) for begin in begins}

    def count(self, now: int) -> tuple[int, int | None]:
        """Return their number, and the sum of their weights, None without."""
        found = self._opened.outstanding(self._layout_id, now - self._older_than)
        if not self._weights:
            return len(found), None
        values = (self._weights[first[LAYOUT_ID]](first) for first in found)
        return len(found), sum(value for value in values if isinstance(value, int))


class Pairing:
    """Replaces the halves of joins by joined records.

    The reader's thread owns it, so it has no lock. It guarantees for any input:

    - A first half ends as exactly one of: joined, open, unpaired. One that a loss broke is unpaired at once,
      and stays open for its second half. A second half is joined or unpaired; by
      ``key``, it is ignored if no first half is open. Two halves are both unpaired if they span a loss, or if
      the second is the older one.
    - No duration is negative, and none spans a moment at which a reported loss happened.
    - By ``stack``, with the right distance, a pair is wrong only if two events went missing without a
      reported loss: the return of a call (or its thread exited in it), and a later entry of the thread at
      exactly the same depth. If the distance is wrong, only calls within 64 bytes of stack are paired.
    - By ``key``, a pair is a first half and the next second half, with no first half in between. Its steps
      are the latest between the two, and are never unpaired.
    - First halves that do not pass `Join.only` are never unpaired.
    - Where ``threads`` is told of them, a thread's exit or exec ends its calls: they are unpaired.

    At most ``most_open`` first halves are open, over all joins. Beyond that, whole lists are dropped, the
    oldest first, a 64th of the limit at once. A list has a thread's calls on one stack, or the event of a
    key.

    ``nested``: keep track of enclosing calls, which ``ended`` and ``watch`` need.

    Costs about 1.1 µs a call (its two events), 0.03 µs a record that is not a half. ``nested`` adds 0.4 µs a
    call, and another 0.5 µs to a call with ``ended``.
    """

    def __init__(self, joins: Iterable[Join] = (), most_open: int = 65_536, *, nested: bool = False) -> None:
        self._nested = NestedCalls(most_open) if nested else None
        self._opened = self._nested or OpenCalls(most_open)
        self.threads = EndedThreads(self._opened)
        self._takes: dict[int, Take] = {}
        self._begun_by: dict[int, ByStack | ByKey] = {}
        self._others: set[int] = set()  # events that end a join, and its steps
        self._ways: dict[int, ByStack | ByKey] = {}
        self._outstanding: dict[int, _Outstanding] = {}
        self._counted = 0  # when these were counted last
        for join in joins:
            self.add(join)

    @property
    def open(self) -> int:
        """The number of first halves that wait for their second half."""
        return self._opened.number

    def add(self, join: Join, *, ended: OnRecord | None = None, system_call: bool = False) -> None:
        """Start joining, and reporting the number of first halves in ``Batch.begun``.

        ``ended`` is called at each join, in stream order, and from then on the join's calls are among those
        that enclose others. Pairs by key have no enclosing calls and enclose none, unless a thread is their
        key. A thread is in one ``system_call`` at a time.

        Raises ValueError if a half belongs to another join too, or lacks a field to be paired by.
        """
        if join.by == "time":
            return
        make = joiner(join, self._opened)
        if ended is not None:
            make = self._telling(join, make, ended, system_call=system_call)
        note = self.threads.add(join)
        stack = join.by == "stack"
        way = ByStack(join, self._opened, make, note) if stack else ByKey(join, self._opened, make)
        takes: dict[int, Take] = {
            begin.layout_id: partial(way.begin, of_half(join, begin)) for begin in join.begins
        }
        takes[join.end.layout_id] = partial(way.end, of_half(join, join.end))
        if isinstance(way, ByKey) and join.again:
            takes[join.end.layout_id] = partial(way.again, of_half(join, join.end))
        elif isinstance(way, ByKey):
            for number, one in enumerate(join.through):
                takes[one.layout_id] = partial(way.step, number, of_half(join, one))
        for layout_id in takes:
            if layout_id in self._takes:
                raise ValueError(
                    f"layout_id {layout_id} of the join {join.layout.event!r} is a half of another join"
                )
        self._takes |= takes
        if join.only is not None:
            self._opened.only |= {begin.layout_id: passes(begin, join.only) for begin in join.begins}
        self._begun_by |= {begin.layout_id: way for begin in join.begins}
        self._others |= {layout.layout_id for layout in (*join.through, join.end)}
        self._ways[join.layout.layout_id] = way
        if join.outstanding is not None:
            self._outstanding[join.layout.layout_id] = _Outstanding(join, self._opened)

    def tell(self, join: Join, told: Callable[[Record, Record], None]) -> None:
        """Call ``told`` with the first half and the joined record of each call of a join that was added."""
        way = self._ways[join.layout.layout_id]
        make = way.make

        def tell(first: Record, second: Record) -> Record | None:
            joined = make(first, second)
            if joined is not None:
                told(first, joined)
            return joined

        way.make = tell

    def watch(self, layout: Layout, seen: OnRecord) -> None:
        """Call ``seen`` with each record of a single event, in stream order.

        Raises ValueError if the layout is a half of a join.
        """
        if layout.layout_id in self._takes:
            raise ValueError(f"layout_id {layout.layout_id} is a half of a join")
        enclosing = self._open_calls().enclosing

        def take(record: Record) -> Record:
            seen(record, record, enclosing(record))
            return record

        self._takes[layout.layout_id] = take

    def follow(self, layout: Layout, handle: Callable[[Record], None]) -> None:
        """Call ``handle`` with each record of a tracepoint about threads, in stream order, and consume it."""
        self._takes[layout.layout_id] = handle

    def outstanding(self, layout_id: int, now: int) -> int:
        """Return the number of a join's outstanding first halves, 0 if it is not asked for."""
        counter = self._outstanding.get(layout_id)
        return 0 if counter is None else counter.count(now)[0]

    def reset(self, join: Join) -> None:
        """Count the open first halves of a join as unpaired: its probe was disabled in between."""
        for key in [key for key in self._opened.lists if key[0] == join.layout.layout_id]:
            self._opened.drop(key)

    def remove(self, join: Join) -> None:
        """Stop joining: open halves are unpaired, later ones unchanged. Its events must be off, and read."""
        self.reset(join)
        self.threads.remove(join)
        self._ways.pop(join.layout.layout_id, None)
        self._outstanding.pop(join.layout.layout_id, None)
        for layout in join.parts:
            self.unwatch(layout)
            self._others.discard(layout.layout_id)
            self._begun_by.pop(layout.layout_id, None)
            self._opened.only.pop(layout.layout_id, None)
        if self._nested is not None:
            self._nested.hide(join)

    def unwatch(self, layout: Layout) -> None:
        """Pass the records of this layout on unchanged from now on."""
        self._takes.pop(layout.layout_id, None)

    def pair(self, batch: Batch) -> Batch:
        """Return the same batch with joined records, each in the place of its second half."""
        opened, take_of = self._opened, self._takes.get
        for loss in batch.losses:
            opened.tell(loss)
        records: list[Record] = []
        keep = records.append
        for record in batch.records:
            take = take_of(record[LAYOUT_ID])
            if take is None:
                keep(record)
            elif (joined := take(record)) is not None:
                keep(joined)
        reached = max(batch.reached, batch.records[-1][TIME] if batch.records else 0)
        batch.records = records
        self.threads.apply()
        opened.count_broken(reached)
        self._take_filtered(batch)
        for layout_id, way in self._ways.items():
            if way.begun:
                batch.begun[layout_id] = way.begun
                way.begun = 0
                if (counter := self._outstanding.get(layout_id)) is not None:
                    counter.here = True
        # The last batch reaches up to a moment that no clock has.
        if self._outstanding and SECOND + self._counted <= reached < NEVER - 1:
            self._counted = reached
            batch.outstanding |= {
                layout_id: one.count(reached) for layout_id, one in self._outstanding.items() if one.here
            }
        if opened.unpaired:
            batch.unpaired.update(opened.unpaired)
            opened.unpaired.clear()
        if opened.evicted:
            batch.evicted.update(opened.evicted)
            opened.evicted.clear()
        return batch

    def _take_filtered(self, batch: Batch) -> None:
        """Count the first halves that the source has discarded as begun: they are hits too."""
        for layout_id in batch.arrived.keys() & (self._begun_by.keys() | self._others):
            turned_away = batch.arrived.pop(layout_id) - batch.passed.pop(layout_id)
            if (way := self._begun_by.get(layout_id)) is not None:
                way.begun += turned_away
        for layout_id in batch.own.keys() & self._begun_by.keys():
            self._begun_by[layout_id].begun += batch.own.pop(layout_id)

    def _open_calls(self) -> NestedCalls:
        if self._nested is None:
            raise ValueError("what calls lie in is not known unless the pairing is made with 'nested'")
        return self._nested

    def _telling(self, join: Join, make: Make, ended: OnRecord, *, system_call: bool) -> Make:
        nested = self._open_calls()
        in_thread = is_nested(join.by, join.key)
        if in_thread:
            nested.show(join, system_call=system_call)

        def tell(first: Record, second: Record) -> Record | None:
            joined = make(first, second)
            if joined is not None:
                ended(first, joined, nested.enclosing(first) if in_thread else [])
            return joined

        return tell
