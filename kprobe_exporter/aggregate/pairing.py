"""Joins two events into one record: the entry and the return of a call, or the events of a pair.

Two events are joined only if they provably belong together. A stack grows down: a call that is open at or
below a new entry has returned without an event, and a return is at a fixed distance from its entry. Events
without such a proof are counted as unpaired: no duration is better than a wrong one.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

from kprobe_exporter.aggregate.ended_threads import EndedThreads, Note
from kprobe_exporter.aggregate.fields import PLACES
from kprobe_exporter.aggregate.nesting import NestedCalls
from kprobe_exporter.aggregate.open_calls import INHERITED, Key, OpenCalls, above
from kprobe_exporter.model import values
from kprobe_exporter.model.values import (
    CALLER,
    CPU,
    LAYOUT_ID,
    TID,
    TIME,
    VALUES,
    Batch,
    Join,
    Layout,
    Record,
)

Of: TypeAlias = Callable[[Record], Any]  # returns the values of a half by which it is paired
Take: TypeAlias = Callable[[Record], Record | None]  # handles a record; returns the record to keep, if any
Make: TypeAlias = Callable[[Record, Record], Record | None]  # joins two halves; None if the pair is in doubt

OnRecord: TypeAlias = Callable[[Record, Record, list[Record]], None]
"""Called with the first half and the joined record of a call, or with the record of a single event twice; and
with the first halves of the calls with ``ended`` that enclose it, the innermost first."""

# Kernel stacks are aligned to their size, 16 KiB (THREAD_SIZE in arch/x86/include/asm/page_64_types.h), and
# an interrupt has its own. Where stacks are larger, calls that ended without an event are detected later.
REGION = 14
FARTHEST = 64  # bytes that a return may be above its entry; 0, 8 and 16 occur


class Pairing:
    """Replaces the halves of joins by joined records.

    The reader's thread owns it, so it has no lock. It guarantees for any input:

    - A first half ends as exactly one of: joined, open, unpaired. A second half is joined or unpaired; by
      ``key``, it is ignored if no first half is open. Two halves are both unpaired if they span a loss, or if
      the second is the older one.
    - No duration is negative, and none spans a moment at which a reported loss happened.
    - By ``stack``, with the right distance, a pair is wrong only if two events went missing without a
      reported loss: the return of a call (or its thread exited in it), and the entry of a later call of the
      thread at exactly the same depth. With a wrong distance, only calls within 64 bytes of stack are paired.
    - By ``depth``, a pair is wrong only if an event of its thread went missing without a reported loss, such
      as returns beyond maxactive (kernel/kprobes.c) or beyond 64 nested ones (kernel/events/uprobes.c).
    - By ``key``, a pair is a first half and the next second half, with no first half in between.
    - Where ``threads`` is told of them, a thread's exit or exec ends its calls: they are unpaired.

    At most ``most_open`` first halves are open, over all joins. Beyond that, whole lists are dropped (a
    thread's calls on one stack, or the event of a key), the oldest first, a 64th of the limit at once.

    ``nested``: keep track of enclosing calls, which ``ended`` and ``watch`` need.

    Costs about 1.1 µs a call (its two events), 0.03 µs a record that is not a half. ``nested`` adds 0.4 µs a
    call, and another 0.5 µs to a call with ``ended``.
    """

    def __init__(self, joins: Iterable[Join] = (), most_open: int = 65_536, *, nested: bool = False) -> None:
        self._nested = NestedCalls(most_open) if nested else None
        self._opened = self._nested or OpenCalls(most_open)
        self.threads = EndedThreads(self._opened)
        self._takes: dict[int, Take] = {}
        self._ways: dict[int, _ByStack | _ByValue] = {}
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
        make = _joiner(join, self._opened)
        if ended is not None:
            make = self._telling(join, make, ended, system_call=system_call)
        note = self.threads.add(join)
        stack = join.by == "stack"
        way = _ByStack(join, self._opened, make, note) if stack else _ByValue(join, self._opened, make)
        takes: dict[int, Take] = {
            begin.layout_id: partial(way.begin, _of(join, begin)) for begin in join.begins
        }
        takes[join.end.layout_id] = partial(way.end, _of(join, join.end))
        for layout_id in takes:
            if layout_id in self._takes:
                raise ValueError(
                    f"layout_id {layout_id} of the join {join.layout.event!r} is a half of another join"
                )
        self._takes |= takes
        self._ways[join.layout.layout_id] = way

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

        def take(record: Record) -> None:
            handle(record)

        self._takes[layout.layout_id] = take

    def reset(self, join: Join) -> None:
        """Count the open first halves of a join as unpaired: its probe was disabled in between."""
        lists = self._opened.lists
        for key in [key for key in lists if key[0] == join.layout.layout_id]:
            self._opened.drop(key)

    def remove(self, join: Join) -> None:
        """Stop joining: open halves are unpaired, later ones unchanged. Its events must be off, and read."""
        self.reset(join)
        self.threads.remove(join)
        self._ways.pop(join.layout.layout_id, None)
        for layout in (*join.begins, join.end):
            self.unwatch(layout)
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
        batch.records = records
        self.threads.apply()
        for layout_id, way in self._ways.items():
            if way.begun:
                batch.begun[layout_id] = way.begun
                way.begun = 0
        batch.unpaired += opened.unpaired
        opened.unpaired = 0
        return batch

    def _open_calls(self) -> NestedCalls:
        if self._nested is None:
            raise ValueError("what calls lie in is not known unless the pairing is made with 'nested'")
        return self._nested

    def _telling(self, join: Join, make: Make, ended: OnRecord, *, system_call: bool) -> Make:
        nested = self._open_calls()
        in_thread = join.by != "key" or join.key == ("tid",)
        if in_thread:
            nested.show(join, system_call=system_call)

        def tell(first: Record, second: Record) -> Record | None:
            joined = make(first, second)
            if joined is not None:
                ended(first, joined, nested.enclosing(first) if in_thread else [])
            return joined

        return tell


class _ByStack:
    """Calls, proved by the stack pointer.

    A return's stack pointer is at the same distance above its entry's in all calls of a join: 8 bytes, until
    returns show another. A return without an entry there votes for the distance to the innermost open call,
    if nothing was lost in between. A distance with more votes than matched returns takes over. A program that
    sets its stack pointer at will may win a vote; then calls are unpaired until others outvote it.
    """

    def __init__(self, join: Join, opened: OpenCalls, make: Make, note: Note | None) -> None:
        self._layout_id, self._opened, self._make = join.layout.layout_id, opened, make
        self._note = note
        self.begun = 0
        self._distance, self._matched = 8, 0
        self._votes: Counter[int] = Counter()

    def begin(self, of: Of, first: Record) -> None:
        self.begun += 1
        place = of(first)
        if place is None:
            self._opened.unpaired += 1
        else:
            key = (self._layout_id, first[TID], place >> REGION)
            self._opened.put(key, place, first)
            if self._note is not None:
                self._note(first[TID], key)

    def end(self, of: Of, second: Record) -> Record | None:
        read, opened = of(second), self._opened
        if read is None:
            opened.unpaired += 1
            return None
        place = read - self._distance
        key = (self._layout_id, second[TID], place >> REGION)
        calls = opened.lists.get(key)
        if calls is None or (calls[-1][0] != place and not self._uncover(key, read, second[TIME])):
            opened.unpaired += 1
            return None
        if len(calls) > 1 and calls[-2][0] < read:
            # The enclosing call lies below the stack pointer too, so it has returned: the distance is wrong.
            opened.unpaired += 1
            opened.drop(key, above(calls, read - 1))
            return None
        self._matched += 1
        first = opened.pop(key)
        return None if first[LAYOUT_ID] == INHERITED else self._make(first, second)

    def _uncover(self, key: Key, read: int, now: int) -> bool:
        """Drop ended calls from the end of a list; return whether its last one is the returning call then.

        If the returning call is not in the list, all calls up to the current stack pointer have ended too.
        """
        calls, place = self._opened.lists[key], read - self._distance
        left = above(calls, place - 1)
        found = left > 0 and calls[left - 1][0] == place
        if not found:
            innermost, first = calls[-1]
            found = first[LAYOUT_ID] != INHERITED and self._outvoted(read - innermost, first[TIME], now)
            left = len(calls) if found else above(calls, read)
        self._opened.drop(key, left)
        return found

    def _outvoted(self, distance: int, begun: int, now: int) -> bool:
        """Take a vote; return whether it is the one by which its distance takes over."""
        self._opened.advance(now)
        if 0 <= distance <= FARTHEST and distance % 8 == 0 and self._opened.broken_until <= begun <= now:
            self._votes[distance] += 1
            if self._votes[distance] > self._matched:
                self._distance = distance
                self._votes.clear()
                return True
        return False


class _ByValue:
    """Pairs the innermost open call of a thread (``depth``), or the latest event of a key (``key``)."""

    def __init__(self, join: Join, opened: OpenCalls, make: Make) -> None:
        self._layout_id, self._opened, self._make = join.layout.layout_id, opened, make
        self._nested = join.by == "depth"
        self.begun = 0

    def begin(self, of: Of, first: Record) -> None:
        self.begun += 1
        key, opened = (self._layout_id, *of(first)), self._opened
        if None in key:
            opened.unpaired += 1
        else:
            opened.put(key, -len(opened.lists.get(key, ())) if self._nested else 0, first)

    def end(self, of: Of, second: Record) -> Record | None:
        key, opened = (self._layout_id, *of(second)), self._opened
        if key in opened.lists:
            return self._make(opened.pop(key), second)
        opened.unpaired += self._nested
        return None


def _of(join: Join, layout: Layout) -> Of:
    if join.by == "depth":
        # Thread 0 is a different thread on each CPU (init_idle() in kernel/sched/core.c).
        return lambda record: (record[TID] or ~record[CPU],)
    places = []
    for name in (values.STACK_POINTER,) if join.by == "stack" else join.key:
        own = layout.place(name)
        places.append(PLACES.get(name, -1) if own is None else own)
    if -1 in places:
        raise ValueError(f"{layout.event!r} lacks a field that {join.layout.event!r} is to be paired by")
    if join.by == "key" and len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)


def _joiner(join: Join, opened: OpenCalls) -> Make:
    """Return the function that joins two halves, or counts both as unpaired if the pair is in doubt."""
    layout_id = join.layout.layout_id
    picks = {begin.layout_id: _picker(join, begin) for begin in join.begins}

    def make(first: Record, second: Record) -> Record | None:
        begun, now = first[TIME], second[TIME]
        if now > opened.next_loss:
            opened.advance(now)
        if begun < opened.broken_until or begun > now:
            opened.unpaired += 2
            return None
        return picks[first[LAYOUT_ID]]((*first, *second, layout_id, now - begun, None))

    return make


def _picker(join: Join, begin: Layout) -> Callable[[Record], Record]:
    """Return the function that picks a joined record out of a row: both halves, layout id, duration, None."""
    second = VALUES + len(begin.args)
    layout_id = second + VALUES + len(join.end.args)
    places = [layout_id, *range(TIME, CALLER), second + CALLER]
    for name in [arg.name for arg in join.layout.args]:
        first, last = begin.place(name), join.end.place(name)
        nowhere = layout_id + 2 if last is None else second + last
        places.append(layout_id + 1 if name == "duration" else nowhere if first is None else first)
    return itemgetter(*places)
