"""Finds the places of programs' stacks and addresses in a thread of its own, since a process may hang it."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kprobe_exporter.aggregate.attached_layout import UNKNOWN, Named
from kprobe_exporter.aggregate.stack_counts import StackCounts
from kprobe_exporter.model.stacks import (
    NOTHING,
    Addresses,
    Frames,
    Place,
    Profile,
    Stack,
    StackLoss,
    StackTally,
    Weight,
)

MOST_WAITING = 16_384
"""Different stacks that wait for their places. Hits with further ones are lost."""

MOST_ADDRESSES = 1 << 18  # Addresses of the stacks that wait, which take 40 bytes each

MOST_ASKED = 4096  # Questions of one process that wait, so that others have room

MOST_KNOWN = 1 << 16  # Places with their names

PATIENCE = 5.0
"""Seconds that a request waits for names. The frames without one by then show their file."""


class ProgramLookup(Protocol):
    """Looks up the code of running programs (`kprobe_exporter.symbols.programs`)."""

    def frames(self, pid: int, addresses: Addresses) -> Frames: ...
    def comm(self, pid: int) -> bytes: ...
    def names(self, places: Iterable[Place]) -> Mapping[Place, bytes]: ...
    def close(self) -> None: ...


class _Waiting(NamedTuple):
    """A stack that waits for its places, and where it is counted then."""

    counts: StackCounts
    kernel: Stack
    process: int
    addresses: Addresses


class _Asked(NamedTuple):
    """Addresses of a process, and what is called with the names of their functions."""

    process: int
    addresses: Sequence[int]
    then: Named


@dataclass(slots=True, eq=False)
class _Open:
    """Addresses whose places are found: ``frames``, in which a name replaces each place once it is known."""

    asked: _Asked
    frames: list[Place | bytes]

    def resolve(self, known: Mapping[Place, bytes]) -> bool:
        """Put names in; return whether all are there."""
        self.frames = [known.get(one, one) if isinstance(one, Place) else one for one in self.frames]
        return not any(isinstance(one, Place) for one in self.frames)

    def answer(self) -> None:
        """Hand the names on; where there is none it is that of the file."""
        self.asked.then([one.name if isinstance(one, Place) else one for one in self.frames])


class ProgramStacks:
    """Counts stacks that go on in a program, and names the functions at single addresses for labels.

    The reader's thread calls ``add``, which takes 1 µs. The thread of this object starts with the first
    stack. It looks the places up while the process still lives, and names functions when a request asks.

    To name functions, the symbols of a whole file are read, which takes seconds for a file that was made for
    that. So the thread reads one file at a time, of the process for which it has worked least. In between it
    answers if all names are known.
    """

    def __init__(self, make: Callable[[], ProgramLookup]) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._waiting: dict[_Waiting, Weight] = {}
        self._wanted: set[Place] = set()
        self._addresses = 0  # of the stacks that wait
        self._asked: list[_Asked] = []
        self._open: list[_Open] = []  # the thread's own
        self._unanswered = Counter[int]()  # questions, by process
        self._worked: dict[int, float] = {}  # seconds of processor time by process, while names are missing
        self._known: dict[Place, bytes] = {}
        self._rounds, self._busy = 0, False
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(
        self, counts: StackCounts, kernel: Stack, process: int, addresses: Addresses, weight: Weight
    ) -> None:
        """Count hits with a stack: of the kernel, and then of a process."""
        if not addresses:
            counts.add(kernel, weight)
            return
        key = _Waiting(counts, kernel, process, addresses)
        with self._changed:
            before = self._waiting.get(key)
            if before is None:
                if len(self._waiting) >= MOST_WAITING or self._addresses >= MOST_ADDRESSES:
                    counts.lose(weight.hits, StackLoss.PROGRAMS)
                    return
                self._addresses += len(addresses)
                self._work()
            self._waiting[key] = (before or NOTHING).plus(weight)

    def add_open(self, counts: StackCounts, tallies: Iterable[StackTally], without: int) -> None:
        """Count the stacks with which what is outstanding began, and those that are unknown."""
        counts.lose(without, StackLoss.ABSENT)
        for _, kernel, process, addresses, weight in tallies:
            self.add(counts, kernel, process, addresses, weight)

    def name(self, process: int, addresses: Sequence[int], then: Named) -> bool:
        """Have ``then`` called with the names of the functions there; return False if too many wait."""
        with self._changed:
            full = len(self._asked) + len(self._open) >= MOST_WAITING
            if full or self._unanswered[process] >= MOST_ASKED or self._ended:
                return False
            self._unanswered[process] += 1
            self._asked.append(_Asked(process, addresses, then))
            self._work()
        return True

    def settle(self, seconds: float) -> None:
        """Wait until all names are there that were asked for up to now, for so many seconds at most."""
        if self._thread is not None:
            with self._changed:
                self._changed.wait_for(lambda: not self._unanswered or self._ended, seconds)

    def profile(self, counts: StackCounts) -> Profile:
        """Return what was counted, with names, after at most PATIENCE if the thread is busy or hangs."""
        self._wait_for_round()
        return counts.profile(self._names)

    def close(self) -> None:
        """End the thread, unless it hangs."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(1.0)

    def _names(self, places: Iterable[Place]) -> Mapping[Place, bytes]:
        asked = set(places)
        with self._changed:
            missing = asked - self._known.keys()
            if missing and self._thread is not None:
                self._wanted |= missing
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._wanted.isdisjoint(missing) or self._ended, PATIENCE)
            return {place: self._known[place] for place in asked if place in self._known}

    def _work(self) -> None:
        """Wake the thread, which starts with the first that it has to do."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kprobe-programs", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._waiting or self._wanted or self._asked or self._open)

    def _wait_for_round(self) -> None:
        """Wait until the thread has counted the stacks that came up to now."""
        with self._changed:
            last = self._rounds + self._busy + self._has_work()
            self._changed.wait_for(lambda: self._rounds >= last or self._ended, PATIENCE)

    def _run(self) -> None:
        programs = self._make()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work() or self._ended)
                if self._ended:
                    break
                asked, self._asked = self._asked, []
                waiting, self._waiting, self._addresses = self._waiting, {}, 0
                self._busy = True
            for (counts, kernel, process, addresses), weight in waiting.items():
                frames = programs.frames(process, addresses)
                counts.add(kernel, weight, (*frames, programs.comm(process)) if counts.rooted else frames)
            for one in asked:  # each process may end at once
                found_at = [programs.frames(one.process, (address,))[0] for address in one.addresses]
                self._open.append(_Open(one, found_at))
            self._answer(self._known)
            process, places = self._next_places()
            began = time.thread_time()
            found = programs.names(places) if places else {}
            self._worked[process] = self._worked.get(process, 0.0) + time.thread_time() - began
            with self._changed:
                if len(self._known) + len(found) > MOST_KNOWN:
                    self._known.clear()
                self._known.update(found)
                self._wanted -= places
            self._answer({**{place: place.name for place in places}, **found})
            with self._changed:
                self._rounds, self._busy = self._rounds + 1, False
                self._changed.notify_all()
        for one in self._asked:  # what waits at the end still counts
            one.then([UNKNOWN] * len(one.addresses))
        for left in self._open:
            left.answer()
        programs.close()

    def _answer(self, known: Mapping[Place, bytes]) -> None:
        """Answer the questions of which all names are known."""
        done = [one for one in self._open if one.resolve(known)]
        if not done:
            return
        for one in done:
            one.answer()
        self._open = [one for one in self._open if any(isinstance(frame, Place) for frame in one.frames)]
        with self._changed:
            self._unanswered -= Counter(one.asked.process for one in done)
            self._changed.notify_all()

    def _next_places(self) -> tuple[int, set[Place]]:
        """Return places of one file, for the process that was worked for least. Process 0 is a request."""
        missing = [
            (one.asked.process, frame)
            for one in self._open
            for frame in one.frames
            if isinstance(frame, Place)
        ]
        with self._changed:
            missing += [(0, place) for place in self._wanted]
        if not missing:
            self._worked.clear()
            return 0, set()
        process, first = min(missing, key=lambda one: self._worked.get(one[0], 0.0))
        return process, {place for _, place in missing if place.file == first.file}
