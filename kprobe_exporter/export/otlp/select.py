"""Selects the records to export: sampling, limits and filters, and each call's place in its trace.

The reader's thread does this, so it must be cheap: no OpenTelemetry object is built here. The compiled walk
does the same without a record for each event (engine/export.c); tests hold both to the same results.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kprobe_exporter.export.otlp.traces import SpanPolicy, Traces, bucket
from kprobe_exporter.model.records import LAYOUT_ID, TID, TIME, Batch, Emission, Join, Layout, Record

Signal: TypeAlias = Literal["log", "span", "line"]

OnRecord: TypeAlias = Callable[[Record, Record, Sequence[Record]], None]
"""Takes a call's first half and its joined record, or a single event's record twice; and the first halves of
the open calls that the thread is in, the innermost first."""

Passes: TypeAlias = Callable[[Record], bool] | None
"""Says whether a record is to be exported; None for all."""

Identity: TypeAlias = Callable[[int, int], Mapping[str, str] | None]
"""Returns the container's and pod's attributes of a thread, by its id and a time in nanoseconds."""

MOST_WAITING = 8192
"""Records that wait for their stack. Records above this number are exported without one."""

MOST_STACKS = 8192
"""Stacks of calls that have not ended. Above this number the oldest are discarded."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A selected record whose stack may still come, in this round of the reader or in the next.

    ``first`` is the event that the stack belongs to. It is kept so that no other record can have its id().
    """

    signal: Signal
    first: Record
    frames: tuple[bytes, ...]
    emission: Emission | None = None
    seen: bool = False


class Selector:
    """Selects the records to export. The reader's thread owns it, so there is no lock.

    The functions that ``on_record`` returns are called in the stream's order. ``consume`` follows for the
    batch, when the thread's container is known. ``tick`` follows each round of the reader and limits the
    wait for stacks. Guarantees:

    - Either all calls of a trace that pass their filters are exported, or none. The outermost call's share
      and limits decide for the whole trace, when the first item in it is to be exported.
    - A call with an exported item in it is exported even if its filter rejects it: filters drop only leaves.
    - A call's parent is the innermost exported call around it in the same thread. A call in an interrupt lies
      in the call that was interrupted. A pair by key has no parent.
    - A log record has its own share and limits. It belongs to the innermost open call if that is exported.
    - Each item that a limit stops is counted as dropped, once. Items that sampling or a filter excludes are
      not. The items of an admitted trace also count against the limits, so that later traces wait for them.

    ``put`` queues an item at once; ``dropped`` counts so many that a limit stopped. ``max_per_second`` is for
    all probes together. A call costs 2 µs if it is sampled out and 3.5 µs if it is exported, with the
    function from ``on_record``; a log record costs 0.2 and 1.5 µs. Filters cost extra.
    """

    def __init__(
        self,
        put: Callable[[Signal, Emission], object],
        dropped: Callable[[Signal, int], object],
        max_per_second: float | None = None,
        *,
        identity: Identity | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        key: bytes | None = None,
    ) -> None:
        self._put = put
        self._dropped = dropped
        self._together = [] if max_per_second is None else [bucket(max_per_second, clock())]
        self._identity = identity
        self._clock = clock
        self._chance = chance
        self._traces = Traces(os.urandom(32) if key is None else key)
        self._selected: list[tuple[Signal, Emission, _Waiting | None]] = []
        self._waiting: dict[int, _Waiting] = {}
        self._stacks: dict[int, tuple[Record, tuple[bytes, ...]]] = {}
        self._with_stack: dict[int, bool] = {}  # by layout_id: whether a call begins with the event
        self._chosen: dict[int, Signal] = {}
        self._until = 0

    def on_record(
        self,
        layout: Layout,
        signal: Signal,
        sample: float = 1.0,
        max_per_second: float | None = None,
        passes: Passes = None,
        join: Join | None = None,
    ) -> OnRecord:
        """Return the function to call for each record of a probe, in the stream's order.

        ``sample`` is the share to keep, 0 to 1, ``max_per_second`` the probe's own limit, ``passes`` the
        filter. Raises ValueError if the signal is a span but the probe's events are not joined.
        """
        own = [] if max_per_second is None else [bucket(max_per_second, self._clock())]
        source = SpanPolicy(sample, [*self._together, *own], self._clock)
        begins = (layout,) if join is None else join.begins
        stacks = {begin.layout_id: join is not None for begin in begins if begin.stack}
        self._with_stack |= stacks
        if signal != "span":
            return self._log(signal, source, sample, passes, stack=bool(stacks))
        if join is None:
            raise ValueError(f"{layout.event!r} takes no time, so it is not a span: export it as a log")
        for begin in begins:
            self._traces.add(begin, source)
        return self._span(source, passes, stack=bool(stacks))

    def expect(self, layout: Layout, signal: Signal) -> None:
        """Take what the source itself has chosen of a probe, by the same rules."""
        self._chosen[layout.layout_id] = signal

    def forget(self, layout: Layout, join: Join | None = None) -> None:
        """Remove a probe that delivers no more records."""
        self._chosen.pop(layout.layout_id, None)
        for one in (layout, *(join.begins if join is not None else ())):
            self._with_stack.pop(one.layout_id, None)
            self._traces.remove(one)

    def consume(self, batch: Batch) -> None:
        """Queue the selected records of a batch, after all other consumers have seen the batch."""
        if batch.records:
            self._until = batch.records[-1][TIME]
        for record, frames in batch.stacks:
            self._take_stack(record, frames)
        selected, self._selected = self._selected, []
        for emission in batch.emissions:
            if (signal := self._chosen.get(emission.record[LAYOUT_ID])) is not None:
                selected.append((signal, emission, None))
        for layout_id, number in batch.limited.items():
            if (signal := self._chosen.get(layout_id)) is not None:
                self._dropped(signal, number)
        for kind, bare, waiting in selected:
            attributes = self._identity(bare.record[TID], bare.record[TIME]) if self._identity else None
            emission = bare._replace(attributes=attributes) if attributes else bare
            if waiting is None:
                self._put(kind, emission)
            else:
                waiting.emission = emission

    def tick(self) -> None:
        """End a round of the reader, with or without batches: queue what has waited for a whole round."""
        for waiting in list(self._waiting.values()):
            if waiting.seen:
                self._release(waiting)
            waiting.seen = True

    def flush(self) -> None:
        """Queue all records that wait. The caller delivers no more records."""
        self.consume(Batch())
        for waiting in list(self._waiting.values()):
            self._release(waiting)

    def _span(self, source: SpanPolicy, passes: Passes, *, stack: bool) -> OnRecord:
        ended = self._traces.ended

        def span(first: Record, record: Record, enclosing: Sequence[Record]) -> None:
            call = ended(first, enclosing)
            if call is not None and (call.needed or passes is None or passes(record)):
                trace, parent = call.trace, call.parent
                if parent is not None:
                    parent.needed = True
                if trace.admits():
                    source.take()
                    ids = trace.id, call.span, parent.span if parent is not None else 0
                    self._select("span", first, record, ids, stack=stack)
                    return
                self._dropped("span", 1)
            self._stacks.pop(id(first), None)

        return span

    def _log(
        self, signal: Signal, source: SpanPolicy, sample: float, passes: Passes, *, stack: bool
    ) -> OnRecord:
        around, chance = self._traces.around, self._chance

        def log(first: Record, record: Record, enclosing: Sequence[Record]) -> None:
            if (sample < 1 and chance() >= sample) or not (passes is None or passes(record)):
                return
            if not source.ready():
                self._dropped(signal, 1)
                return
            source.take()
            call, ids = around(enclosing), (0, 0, 0)
            if call is not None and call.trace.sampled and call.trace.admits():
                call.needed = True
                ids = call.trace.id, 0, call.span
            self._select(signal, first, record, ids, stack=stack)

        return log

    def _select(
        self, signal: Signal, first: Record, record: Record, ids: tuple[int, int, int], *, stack: bool
    ) -> None:
        waiting = None
        if stack and len(self._waiting) < MOST_WAITING:
            _, frames = self._stacks.pop(id(first), (first, ()))
            waiting = self._waiting[id(first)] = _Waiting(signal, first, frames)
        self._selected.append((signal, Emission(record, *ids), waiting))

    def _take_stack(self, record: Record, frames: tuple[bytes, ...]) -> None:
        """Add frames to the record that waits for them, or keep them for a record that comes later: a call
        ends later, and an event may be held back for the order of time while its stack is not."""
        waiting = self._waiting.get(id(record))
        if waiting is not None:
            waiting.frames += frames
            return
        of_call = self._with_stack.get(record[LAYOUT_ID])
        if of_call or (of_call is False and record[TIME] > self._until):
            _, before = self._stacks.get(id(record), (record, ()))
            self._stacks[id(record)] = record, before + frames
            if len(self._stacks) > MOST_STACKS:
                del self._stacks[next(iter(self._stacks))]

    def _release(self, waiting: _Waiting) -> None:
        """Queue a record that has waited, if its batch was consumed."""
        if waiting.emission is not None:
            del self._waiting[id(waiting.first)]
            self._put(waiting.signal, waiting.emission._replace(stack=waiting.frames))
