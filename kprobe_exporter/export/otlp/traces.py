"""Which trace a call belongs to: ids made of nothing but the call, and one decision for a whole trace."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from struct import Struct

from kprobe_exporter.model.values import CPU, SLOT, STACK_POINTER, TID, TIME, Layout, Record

MOST_CALLS = 16_384
"""Open calls that others were seen in. Over it the oldest are forgotten, and decided about again."""

ALL = 1 << 64
_WORD = ALL - 1
_hashed, _hash = Struct("<4Q").pack, Struct(">3Q").unpack


class Limit:
    """A token bucket: ``per_second`` of them, a second's worth (at least one) at once.

    ``clock`` in seconds, never going back. Not thread-safe.
    """

    __slots__ = ("_clock", "_left", "_most", "_since", "_speed")

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._speed, self._most, self._clock = per_second, max(1.0, per_second), clock
        self._left, self._since = self._most, clock()

    def ready(self) -> bool:
        """Whether one may be taken."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._since) * self._speed)
        self._since = now
        return self._left >= 1

    def take(self) -> None:
        """Take one, also if none is left: then later ones have to wait, for as many as come in a second."""
        self._left = max(self._left - 1, -self._most)


class Source:
    """What decides about the traces whose outermost call is one probe's."""

    __slots__ = ("limits", "share")

    def __init__(self, sample: float, limits: Sequence[Limit]) -> None:
        self.share = round(sample * ALL)
        self.limits = tuple(limits)

    def ready(self) -> bool:
        return all(limit.ready() for limit in self.limits)

    def take(self) -> None:
        for limit in self.limits:
            limit.take()


class Trace:
    """What all calls in one outermost call share. ``admitted`` is None until it has to be known."""

    __slots__ = ("admitted", "id", "sampled", "source")

    def __init__(self, number: int, source: Source) -> None:
        self.id = number
        self.sampled = number % ALL < source.share
        self.source = source
        self.admitted: bool | None = None

    def admits(self) -> bool:
        """Whether the limits let it through, as they stood when this was first asked."""
        if self.admitted is None:
            self.admitted = self.source.ready()
        return self.admitted


class Call:
    """A call that is or will be a span; ``needed`` if something that is exported lies in it."""

    __slots__ = ("first", "needed", "parent", "span", "trace")

    def __init__(self, first: Record, span: int, parent: "Call | None", trace: Trace) -> None:
        self.first = first
        self.span = span
        self.parent = parent
        self.trace = trace
        self.needed = False


class Traces:
    """Finds the trace of a call by the open calls that it lies in; the reader's thread owns it.

    An id is a keyed hash of who called what when, and how deep in its stack: so a call knows the id of the
    one around it, which ends later. ``key`` are up to 64 random bytes. Sampling is decided by the trace's id,
    its lower 64 bits as TraceIdRatioBased has it, with the share of the outermost call's probe.
    """

    def __init__(self, key: bytes) -> None:
        self._hash = blake2b(key=key, digest_size=24)
        self._sources: dict[int, tuple[Source, int | None]] = {}
        self._calls: dict[int, Call] = {}

    def add(self, begin: Layout, source: Source) -> None:
        """Make spans of what begins with this event."""
        self._sources[begin.slot] = source, begin.place(STACK_POINTER)

    def remove(self, begin: Layout) -> None:
        """Make none any more."""
        self._sources.pop(begin.slot, None)

    def ended(self, first: Record, enclosing: Sequence[Record]) -> Call | None:
        """The call of this first half, which is over; ``enclosing`` are others, the innermost first.

        None if its trace is not sampled.
        """
        call = self._calls.pop(id(first), None) or self._make(first, self.around(enclosing))
        return call if call.trace.sampled else None

    def around(self, enclosing: Sequence[Record]) -> Call | None:
        """The innermost of the open calls that become spans, remembered until it ends."""
        if not enclosing:
            return None
        parent: Call | None = None
        unknown: list[Record] = []
        for first in enclosing:
            if first[SLOT] in self._sources:
                parent = self._calls.get(id(first))
                if parent is not None:
                    break
                unknown.append(first)
        for first in reversed(unknown):
            parent = self._calls[id(first)] = self._make(first, parent)
            if len(self._calls) > MOST_CALLS:
                del self._calls[next(iter(self._calls))]
        return parent

    def _make(self, first: Record, parent: Call | None) -> Call:
        source, place = self._sources[first[SLOT]]
        pointer = first[place] if place is not None else 0
        thread = first[TID] or ~first[CPU]
        words = _hashed(first[SLOT], thread & _WORD, first[TIME] & _WORD, (pointer or 0) & _WORD)
        hashed = self._hash.copy()
        hashed.update(words)
        high, low, span = _hash(hashed.digest())
        if parent is None:
            return Call(first, span or 1, None, Trace(high << 64 | low or 1, source))
        return Call(first, span or 1, parent, parent.trace)
