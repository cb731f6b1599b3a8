"""Making one record of two events: the entry and the return of a call, or whatever begins and ends.

Which two belong together is a matter of proof. A stack grows down: what is open at or below a new entry
has returned unnoticed, and a return is at a fixed distance from its entry. What cannot be proved is
counted as unpaired: no duration is better than a wrong one.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

from kprobe_exporter.aggregate.nesting import Nested
from kprobe_exporter.aggregate.opened import Key, Opened, above
from kprobe_exporter.aggregate.updates import PLACES
from kprobe_exporter.model import values
from kprobe_exporter.model.values import CALLER, CPU, SLOT, TID, TIME, VALUES, Batch, Join, Layout, Record

Of: TypeAlias = Callable[[Record], Any]  # takes out of a half what it is paired by
Take: TypeAlias = Callable[[Record], Record | None]  # what is done with a half: gives what it completes
Make: TypeAlias = Callable[[Record, Record], Record | None]  # makes one record of both, unless in doubt

Told: TypeAlias = Callable[[Record, Record, list[Record]], None]
"""Told of a call its first half and the joined record, of a single event the same record twice; and the
first halves of the calls with ``ended`` that its thread was in at that moment, the innermost first."""

# Kernel stacks are aligned to their 16 KiB (THREAD_SIZE in arch/x86/include/asm/page_64_types.h), and an
# interrupt's is another one. Where stacks are larger, what is dead is only found out later.
REGION = 14
FARTHEST = 64  # bytes that a return may be above its entry; known are 0, 8 and 16


class Pairing:
    """Replaces the halves of joins by joined records.

    The reader's thread owns it: nothing is locked. Whatever comes, it guarantees:

    - A first half ends as exactly one of: joined, open, unpaired. A second half is joined or unpaired;
      by ``key`` it is ignored where nothing is open. Two halves that span a loss, or of which the second
      is the older one, are both unpaired.
    - No duration is negative, and none spans a moment at which events were lost and that was told.
    - By ``stack``, with the right distance, a pair is never wrong unless both the return of a call (or
      its thread exited in it) and the entry of a later one of the same thread at the very same depth went
      missing untold. With a wrong one, calls stay unpaired, but for those within 64 bytes of stack.
    - By ``depth``, a pair is never wrong unless an event of its thread went missing untold, such as
      returns beyond maxactive (kernel/kprobes.c) or 64 nested ones (kernel/events/uprobes.c).
    - By ``key``, a pair is a first half and the next second one, with no first one in between.

    At most ``most_open`` first halves are open, over all joins. Over it whole lists go (a thread's calls on
    one stack, or a key's event), those that were begun first, a 64th of the room at once.

    ``nested``: somebody wants to be told of calls as they end, and what they were in.

    Costs about 1.1 µs a call (its two events), 0.03 µs a record that is no half. ``nested`` adds 0.4 µs
    a call, and 0.5 µs more to one with ``ended``.
    """

    def __init__(self, joins: Iterable[Join] = (), most_open: int = 65_536, *, nested: bool = False) -> None:
        self._nested = Nested(most_open) if nested else None
        self._opened = self._nested or Opened(most_open)
        self._takes: dict[int, Take] = {}
        self._counted: set[int] = set()
        for join in joins:
            self.add(join)

    @property
    def open(self) -> int:
        """The number of first halves that wait for their second one."""
        return self._opened.number

    def add(
        self, join: Join, *, counted: bool = False, ended: Told | None = None, system_call: bool = False
    ) -> None:
        """Join its halves from now on; ``counted``: tell in ``Batch.arrived`` how many first ones came.

        ``ended`` is called at each join, in its place in the stream, and from then on the join's calls are
        among those that others lie in; but pairs by key lie in none, unless a thread is their key. A thread
        is in one ``system_call`` at a time.

        Raises ValueError if one of them is another join's too, or lacks what it is to be paired by.
        """
        make = _joiner(join, self._opened)
        if ended is not None:
            make = self._telling(join, make, ended, system_call=system_call)
        way = (_ByStack if join.by == "stack" else _ByValue)(join, self._opened, make)
        takes: dict[int, Take] = {begin.slot: partial(way.begin, _of(join, begin)) for begin in join.begins}
        takes[join.end.slot] = partial(way.end, _of(join, join.end))
        for slot in takes:
            if slot in self._takes:
                raise ValueError(f"slot {slot} of the join {join.layout.event!r} is a half of another join")
        self._takes |= takes
        if counted:
            self._counted |= {begin.slot for begin in join.begins}

    def watch(self, layout: Layout, seen: Told) -> None:
        """Have ``seen`` called at each record of a single event, in its place in the stream.

        Raises ValueError if it is a half of a join.
        """
        if layout.slot in self._takes:
            raise ValueError(f"slot {layout.slot} is a half of a join")
        enclosing = self._open_calls().enclosing

        def take(record: Record) -> Record:
            seen(record, record, enclosing(record))
            return record

        self._takes[layout.slot] = take

    def reset(self, join: Join) -> None:
        """Its probe was disabled in between: what is open is unpaired."""
        lists = self._opened.lists
        for key in [key for key in lists if key[0] == join.layout.slot]:
            self._opened.drop(key)

    def remove(self, join: Join) -> None:
        """What is open is unpaired, and its halves are plain records: they have to be off, and read."""
        self.reset(join)
        for layout in (*join.begins, join.end):
            self.unwatch(layout)
        if self._nested is not None:
            self._nested.hide(join)

    def unwatch(self, layout: Layout) -> None:
        """Do nothing with its records any more."""
        self._takes.pop(layout.slot, None)
        self._counted.discard(layout.slot)

    def pair(self, batch: Batch) -> Batch:
        """The same batch with joined records, each in the place of its second half."""
        opened, take_of = self._opened, self._takes.get
        for loss in batch.losses:
            opened.tell(loss)
        if self._counted:
            arrived = Counter(map(itemgetter(SLOT), batch.records))
            batch.arrived |= {slot: arrived[slot] for slot in self._counted & arrived.keys()}
        records: list[Record] = []
        keep = records.append
        for record in batch.records:
            take = take_of(record[SLOT])
            if take is None:
                keep(record)
            elif (joined := take(record)) is not None:
                keep(joined)
        batch.records = records
        batch.unpaired += opened.unpaired
        opened.unpaired = 0
        return batch

    def _open_calls(self) -> Nested:
        if self._nested is None:
            raise ValueError("what calls lie in is not known unless the pairing is made with 'nested'")
        return self._nested

    def _telling(self, join: Join, make: Make, ended: Told, *, system_call: bool) -> Make:
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

    A return reads it at the same distance above its entry in all calls of a join: 8, until returns say
    otherwise. One that misses its entry votes for the distance to the innermost open call, if nothing was
    lost in between, and a distance with more votes than returns have matched takes over. Who sets its
    stack pointer as it likes may win a vote: then calls are unpaired until others outvote it.
    """

    def __init__(self, join: Join, opened: Opened, make: Make) -> None:
        self._slot, self._opened, self._make = join.layout.slot, opened, make
        self._distance, self._matched = 8, 0
        self._votes: Counter[int] = Counter()

    def begin(self, of: Of, first: Record) -> None:
        place = of(first)
        if place is None:
            self._opened.unpaired += 1
        else:
            self._opened.put((self._slot, first[TID], place >> REGION), place, first)

    def end(self, of: Of, second: Record) -> Record | None:
        read, opened = of(second), self._opened
        if read is None:
            opened.unpaired += 1
            return None
        place = read - self._distance
        key = (self._slot, second[TID], place >> REGION)
        calls = opened.lists.get(key)
        if calls is None or (calls[-1][0] != place and not self._uncover(key, read, second[TIME])):
            opened.unpaired += 1
            return None
        if len(calls) > 1 and calls[-2][0] < read:
            # The caller lies below the stack pointer too, so it has returned: the distance is wrong.
            opened.unpaired += 1
            opened.drop(key, above(calls, read - 1))
            return None
        self._matched += 1
        return self._make(opened.pop(key), second)

    def _uncover(self, key: Key, read: int, now: int) -> bool:
        """Drop the dead from the end of a list; tell whether the call that returns is the last one then.

        If it is not there, all that lies up to where the stack pointer is now has returned too.
        """
        calls, place = self._opened.lists[key], read - self._distance
        left = above(calls, place - 1)
        found = left > 0 and calls[left - 1][0] == place
        if not found:
            innermost, first = calls[-1]
            found = self._outvoted(read - innermost, first[TIME], now)
            left = len(calls) if found else above(calls, read)
        self._opened.drop(key, left)
        return found

    def _outvoted(self, distance: int, begun: int, now: int) -> bool:
        """Take a vote; tell whether it is the one by which its distance takes over."""
        self._opened.advance(now)
        if 0 <= distance <= FARTHEST and distance % 8 == 0 and self._opened.broken_until <= begun <= now:
            self._votes[distance] += 1
            if self._votes[distance] > self._matched:
                self._distance = distance
                self._votes.clear()
                return True
        return False


class _ByValue:
    """Calls of one thread, the innermost first, or events of one key, the latest."""

    def __init__(self, join: Join, opened: Opened, make: Make) -> None:
        self._slot, self._opened, self._make = join.layout.slot, opened, make
        self._nested = join.by == "depth"

    def begin(self, of: Of, first: Record) -> None:
        key, opened = (self._slot, *of(first)), self._opened
        if None in key:
            opened.unpaired += 1
        else:
            opened.put(key, -len(opened.lists.get(key, ())) if self._nested else 0, first)

    def end(self, of: Of, second: Record) -> Record | None:
        key, opened = (self._slot, *of(second)), self._opened
        if key in opened.lists:
            return self._make(opened.pop(key), second)
        opened.unpaired += self._nested
        return None


def _of(join: Join, layout: Layout) -> Of:
    if join.by == "depth":
        # Thread 0 is another one on each CPU (init_idle() in kernel/sched/core.c).
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


def _joiner(join: Join, opened: Opened) -> Make:
    """The function that makes one record of two, or counts them if there is a doubt."""
    slot = join.layout.slot
    picks = {begin.slot: _picker(join, begin) for begin in join.begins}

    def make(first: Record, second: Record) -> Record | None:
        begun, now = first[TIME], second[TIME]
        if now > opened.next_loss:
            opened.advance(now)
        if begun < opened.broken_until or begun > now:
            opened.unpaired += 2
            return None
        return picks[first[SLOT]]((*first, *second, slot, now - begun, None))

    return make


def _picker(join: Join, begin: Layout) -> Callable[[Record], Record]:
    """Takes the joined record out of both halves, its slot, the duration, and None for what is nowhere."""
    second = VALUES + len(begin.args)
    slot = second + VALUES + len(join.end.args)
    places = [slot, *range(TIME, CALLER), second + CALLER]
    for name in [arg.name for arg in join.layout.args]:
        first, last = begin.place(name), join.end.place(name)
        nowhere = slot + 2 if last is None else second + last
        places.append(slot + 1 if name == "duration" else nowhere if first is None else first)
    return itemgetter(*places)
