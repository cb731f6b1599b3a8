"""Assigns calls to traces: ids that depend only on the call, and one decision for a whole trace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct

from kprobe_exporter.model.records import CPU, LAYOUT_ID, STACK_POINTER, TID, TIME, Layout, Record
from kprobe_exporter.util.token_bucket import TokenBucket

MOST_CALLS = 16_384
"""Open calls that contain others. Above this number the oldest are discarded, and decided on again."""

ALL = 1 << 64
_WORD = ALL - 1
_hashed, _hash = Struct("<4Q").pack, Struct(">3Q").unpack


def bucket(per_second: float, now: float) -> TokenBucket:
    """Return a limit with room for one second's tokens, at least one. ``now`` is in seconds."""
    return TokenBucket(per_second, max(1.0, per_second), now)


class SpanPolicy:
    """The share and the limits of the traces whose outermost call is one probe's. ``clock`` gives seconds."""

    __slots__ = ("_clock", "_limits", "share")

    def __init__(self, sample: float, limits: Sequence[TokenBucket], clock: Callable[[], float]) -> None:
        self.share = round(sample * ALL)
        self._limits = limits
        self._clock = clock

    def ready(self) -> bool:
        """Whether each limit has a token."""
        return all(limit.refill(self._clock()) >= 1 for limit in self._limits)

    def take(self) -> None:
        """Take a token, even if none is left. The debt is at most one second's tokens; later items wait."""
        for limit in self._limits:
            limit.level = max(limit.level - 1, -limit.burst)


@dataclass(slots=True, eq=False)
class Trace:
    """State shared by all calls in one outermost call. ``admitted`` is None until ``admits`` is called."""

    id: int
    sampled: bool
    source: SpanPolicy
    admitted: bool | None = None

    def admits(self) -> bool:
        """Whether the limits let the trace through, as they stood at the first call of this method."""
        if self.admitted is None:
            self.admitted = self.source.ready()
        return self.admitted


@dataclass(slots=True, eq=False)
class Call:
    """A call that is or will be a span. ``needed`` says that an exported item lies in it."""

    first: Record
    span: int
    parent: "Call | None"
    trace: Trace
    needed: bool = False


class Traces:
    """Finds the trace of a call from the open calls around it. The reader's thread owns it.

    An id is a keyed hash of the call's layout, thread, time and stack pointer. So a call knows the id of the
    call around it, which ends later. ``key`` is up to 64 random bytes. The lower 64 bits of the trace id
    decide on sampling, as in TraceIdRatioBased, with the share of the outermost call's probe.
    """

    def __init__(self, key: bytes) -> None:
        self._hash = blake2b(key=key, digest_size=24)
        self._sources: dict[int, tuple[SpanPolicy, int | None]] = {}
        self._calls: dict[int, Call] = {}

    def add(self, begin: Layout, source: SpanPolicy) -> None:
        """Make spans of the calls that begin with this event."""
        self._sources[begin.layout_id] = source, begin.place(STACK_POINTER)

    def remove(self, begin: Layout) -> None:
        """Make no more spans of the calls that begin with this event."""
        self._sources.pop(begin.layout_id, None)

    def ended(self, first: Record, enclosing: Sequence[Record]) -> Call | None:
        """Return the call of this first half, which has ended; None if its trace is not sampled.

        ``enclosing`` are the first halves of the calls around it, the innermost first.
        """
        call = self._calls.pop(id(first), None) or self._make(first, self.around(enclosing))
        return call if call.trace.sampled else None

    def around(self, enclosing: Sequence[Record]) -> Call | None:
        """Return the innermost of the open calls that become spans, and remember it until it ends."""
        if not enclosing:
            return None
        parent: Call | None = None
        unknown: list[Record] = []
        for first in enclosing:
            if first[LAYOUT_ID] in self._sources:
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
        source, place = self._sources[first[LAYOUT_ID]]
        pointer = first[place] if place is not None else 0
        thread = first[TID] or ~first[CPU]
        words = _hashed(first[LAYOUT_ID], thread & _WORD, first[TIME] & _WORD, (pointer or 0) & _WORD)
        hashed = self._hash.copy()
        hashed.update(words)
        high, low, span = _hash(hashed.digest())
        trace = Trace(high << 64 | low or 1, low < source.share, source) if parent is None else parent.trace
        return Call(first, span or 1, parent, trace)
