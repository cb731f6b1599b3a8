"""How an end finds its beginning, by the stack pointer or by values that both have, and what both become."""

from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Any, TypeAlias

from kprobe_exporter.aggregate.ended_threads import Note
from kprobe_exporter.aggregate.open_calls import INHERITED, Key, OpenCalls, above
from kprobe_exporter.aggregate.recipes import tuple_getter
from kprobe_exporter.model.joins import DISTANCE, Steps
from kprobe_exporter.model.records import (
    CALLER,
    CPU,
    LAYOUT_ID,
    PLACES,
    PREVIOUS,
    STACK_POINTER,
    TID,
    TIME,
    VALUES,
    Join,
    Layout,
    Record,
)

Of: TypeAlias = Callable[[Record], Any]  # returns the values of a half by which it is paired
Make: TypeAlias = Callable[[Record, Record], Record | None]  # joins two halves; None if the pair is in doubt

# Kernel stacks are aligned to their size, 16 KiB (THREAD_SIZE in arch/x86/include/asm/page_64_types.h), and
# an interrupt has its own. Where stacks are larger, calls that ended without an event are detected later.
REGION = 14
FARTHEST = 64  # bytes that a return may be above its entry; 0, 8 and 16 occur


class ByStack:
    """Calls, proved by the stack pointer.

    A return's stack pointer is at the same distance above its entry's in all calls of a join: DISTANCE, until
    returns show another. A return without an entry there votes for the distance to the innermost open call,
    if nothing was lost in between. A distance with more votes than matched returns takes over. A program that
    sets its stack pointer at will may win a vote; then calls are unpaired until others outvote it.

    ``begun`` counts the first halves.
    """

    def __init__(self, join: Join, opened: OpenCalls, make: Make, note: Note | None) -> None:
        self._layout_id, self._opened, self.make = join.layout.layout_id, opened, make
        self._note = note
        self.begun = 0
        self._distance, self._matched = DISTANCE, 0
        self._votes: Counter[int] = Counter()

    def begin(self, of: Of, first: Record) -> None:
        """Open a first half."""
        self.begun += 1
        place = of(first)
        if place is None:
            self._opened.lose(self._layout_id, first)
        else:
            key = (self._layout_id, first[TID], place >> REGION)
            self._opened.put(key, place, first)
            if self._note is not None:
                self._note(first[TID], key)

    def end(self, of: Of, second: Record) -> Record | None:
        """Join a second half with its first half; None if that is missing or in doubt."""
        read, opened = of(second), self._opened
        if read is None:
            opened.unpaired[self._layout_id] += 1
            return None
        place = read - self._distance
        key = (self._layout_id, second[TID], place >> REGION)
        calls = opened.lists.get(key)
        if calls is None or (calls[-1][0] != place and not self._uncover(key, read, second[TIME])):
            opened.unpaired[self._layout_id] += 1
            return None
        if len(calls) > 1 and calls[-2][0] < read:
            # The enclosing call lies below the stack pointer too, so it has returned: the distance is wrong.
            opened.unpaired[self._layout_id] += 1
            opened.drop(key, above(calls, read - 1))
            return None
        self._matched += 1
        first = opened.pop(key)
        return None if first[LAYOUT_ID] == INHERITED else self.make(first, second)

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


class ByKey:
    """Pairs an end with the latest first half of its key. ``begun`` counts the first halves.

    A step between them belongs to the first half that is open then; the latest of each step counts.
    """

    def __init__(self, join: Join, opened: OpenCalls, make: Make) -> None:
        self._layout_id, self._opened, self.make = join.layout.layout_id, opened, make
        self._nsteps = len(join.through)
        self.begun = 0

    def begin(self, of: Of, first: Record) -> None:
        """Open a first half."""
        self.begun += 1
        key = (self._layout_id, *of(first))
        if None in key:
            self._opened.lose(self._layout_id, first)
        else:
            if self._nsteps:
                self._opened.steps[id(first)] = [None] * self._nsteps
            self._opened.put(key, 0, first)

    def again(self, of: Of, record: Record) -> Record | None:
        """End the pair that the event before this one began, and begin the next."""
        joined = self.end(of, record)
        self.begin(of, record)
        return joined

    def step(self, number: int, of: Of, record: Record) -> None:
        """Keep the time of a step with the first half to which it belongs, if one is open."""
        [(_, first)] = self._opened.lists.get((self._layout_id, *of(record)), [(0, None)])
        if first is not None and first[TIME] <= record[TIME]:
            self._opened.steps[id(first)][number] = record[TIME] - first[TIME]

    def end(self, of: Of, second: Record) -> Record | None:
        """Join a second half with its first half; None if that is missing or in doubt."""
        key = (self._layout_id, *of(second))
        return self.make(self._opened.pop(key), second) if key in self._opened.lists else None


def of_half(join: Join, layout: Layout) -> Of:
    """Return the function that reads from a half what it is paired by. Raises ValueError if it lacks that."""
    places = []
    for name in (STACK_POINTER,) if join.by == "stack" else join.key:
        own = layout.place(name)
        places.append(PLACES.get(name, -1) if own is None else own)
    if -1 in places:
        raise ValueError(f"{layout.event!r} lacks a field that {join.layout.event!r} is to be paired by")
    return tuple_getter(places) if join.by == "key" else itemgetter(*places)


def joiner(join: Join, opened: OpenCalls) -> Make:
    """Return the function that joins two halves, or counts both as unpaired if the pair is in doubt."""
    layout_id = join.layout.layout_id
    joined = joined_record(join)

    def make(first: Record, second: Record) -> Record | None:
        begun, now = first[TIME], second[TIME]
        steps = opened.steps.pop(id(first), ()) if join.through else ()
        if now > opened.next_loss:
            opened.advance(now)
        if begun < opened.broken_until or begun > now:
            opened.lose(layout_id, first, halves=1 if opened.is_told(first) else 2)
            return None
        return joined(first, second, steps)

    return make


def joined_record(join: Join) -> Callable[[Record, Record, Steps], Record]:
    """Return the function that makes the joined record of two halves that belong together."""
    layout_id = join.layout.layout_id
    picks = {begin.layout_id: _picker(join, begin) for begin in join.begins}

    def make(first: Record, second: Record, steps: Steps) -> Record:
        row = (*first, *second, layout_id, second[TIME] - first[TIME], None, *steps)
        return picks[first[LAYOUT_ID]](row)

    return make


def _picker(join: Join, begin: Layout) -> Callable[[Record], Record]:
    """Return the function that picks a joined record out of a row.

    A row is both halves, the layout's id, the duration, None, and the times of the steps.
    """
    second = VALUES + len(begin.args)
    layout_id = second + VALUES + len(join.end.args)
    of_thread = second if join.again else 0
    places = [layout_id, TIME, *range(of_thread + CPU, of_thread + CALLER), second + CALLER]
    measured = {name: layout_id + 3 + at for at, name in enumerate(join.layout.steps)}
    measured["duration"] = layout_id + 1
    for name in [arg.name for arg in join.layout.args]:
        first, last = begin.place(name), join.end.place(name)
        if join.again:
            first = None if last is not None else begin.place(name.removeprefix(PREVIOUS))
        nowhere = layout_id + 2 if last is None else second + last
        places.append(measured.get(name, nowhere if first is None else first))
    return itemgetter(*places)
