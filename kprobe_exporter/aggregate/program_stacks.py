"""Finds the places of programs' stacks and addresses in a thread of its own, since a process may hang it."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kprobe_exporter.aggregate.program_names import UNKNOWN, Named
from kprobe_exporter.aggregate.stacks import StackCounts
from kprobe_exporter.model.stacks import NOTHING, Addresses, Frames, Place, Profile, Stack, Weight

MOST_WAITING = 16_384
"""Different stacks that wait for their places. Hits with further ones are lost."""

MOST_KNOWN = 1 << 16  # Places with their names

PATIENCE = 5.0
"""Seconds that a request waits for names. The frames without one by then show their file."""


class ProgramLookup(Protocol):
    """What looks up the code of running programs (`kprobe_exporter.symbols.programs`)."""

    def frames(self, pid: int, addresses: Addresses) -> Frames: ...
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


class ProgramStacks:
    """Counts stacks that go on in a program, and names the functions at single addresses for labels.

    The reader's thread calls ``add``, which takes 1 µs; the thread of this object, which starts with the
    first stack, looks the places up while the process still lives, and names functions when a request asks.
    """

    def __init__(self, make: Callable[[], ProgramLookup]) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._waiting: dict[_Waiting, Weight] = {}
        self._wanted: set[Place] = set()
        self._asked: list[_Asked] = []
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
            if before is None and len(self._waiting) >= MOST_WAITING:
                counts.lose(weight.hits)
                return
            self._waiting[key] = (before or NOTHING).plus(weight)
            if before is None:
                self._work()

    def name(self, process: int, addresses: Sequence[int], then: Named) -> bool:
        """Have ``then`` called with the names of the functions there; return False if too many wait."""
        with self._changed:
            if len(self._asked) >= MOST_WAITING or self._ended:
                return False
            self._asked.append(_Asked(process, addresses, then))
            self._work()
        return True

    def settle(self, seconds: float) -> None:
        """Wait until all names are there that were asked for up to now, for so many seconds at most."""
        if self._thread is not None:
            self._wait_for_rounds(seconds)

    def profile(self, counts: StackCounts) -> Profile:
        """Return what was counted, with names, after at most PATIENCE if the thread is busy or hangs."""
        self._wait_for_rounds()
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
        self._wait_for_rounds()
        with self._changed:
            return {place: self._known[place] for place in asked if place in self._known}

    def _work(self) -> None:
        """Wake the thread, which starts with the first that it has to do."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kprobe-programs", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._waiting or self._wanted or self._asked)

    def _wait_for_rounds(self, seconds: float = PATIENCE) -> None:
        """Wait until the thread has done all that was asked for up to now."""
        with self._changed:
            last = self._rounds + self._busy + self._has_work()
            self._changed.wait_for(lambda: self._rounds >= last or self._ended, seconds)

    def _run(self) -> None:
        programs = self._make()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work() or self._ended)
                if self._ended:
                    break
                asked, self._asked = self._asked, []
                waiting, self._waiting = self._waiting, {}
                wanted, self._wanted = self._wanted, set()
                self._busy = True
            for (counts, kernel, process, addresses), weight in waiting.items():
                counts.add(kernel, weight, programs.frames(process, addresses))
            found = programs.names(wanted) if wanted else {}
            found = {**found, **self._answer(programs, asked)}
            with self._changed:
                if len(self._known) + len(found) > MOST_KNOWN:
                    self._known.clear()
                self._known.update(found)
                self._rounds, self._busy = self._rounds + 1, False
                self._changed.notify_all()
        for one in self._asked:  # what waits at the end still counts
            one.then([UNKNOWN] * len(one.addresses))
        programs.close()

    def _answer(self, programs: ProgramLookup, asked: Iterable[_Asked]) -> Mapping[Place, bytes]:
        """Name the functions at single addresses, each in a process that may end at once.

        Return the names that were not known before: to find one, the symbols of a whole file may be read.
        """
        frames = [[programs.frames(one.process, (address,))[0] for address in one.addresses] for one in asked]
        places = {frame for of_one in frames for frame in of_one if isinstance(frame, Place)}
        missing = places - self._known.keys()
        found = programs.names(missing) if missing else {}
        for one, of_one in zip(asked, frames, strict=True):
            one.then([_text(frame, found, self._known) for frame in of_one])
        return found


def _text(frame: Place | bytes, *names: Mapping[Place, bytes]) -> bytes:
    if not isinstance(frame, Place):
        return frame
    return next((some[frame] for some in names if frame in some), frame.name)
