"""Reads trace_pipe_raw, the ring-buffer pages of every CPU, and delivers their records in time order."""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Protocol, cast

from kprobe_exporter.errors import SourceError
from kprobe_exporter.model.records import OF_THREADS, TIME, Batch, Loss, Record
from kprobe_exporter.model.stacks import StackTally
from kprobe_exporter.model.thread_times import Watched
from kprobe_exporter.source.pages import NEVER_ONLINE, UNKNOWN

PULL_BYTES = 256 * 1024
"""Read at once from one CPU: some thousand events, which may have to wait for other CPUs' events."""

READ_AHEAD_BYTES = 1024 * 1024
"""Read of all CPUs together before the first record can be delivered: fewer records than MOST_HELD, because
a record has at least 20 bytes. The pages of more CPUs than this has pages may exceed it."""

MOST_PAGES = 64
"""The most pages that a parser takes at once."""

MANY = 8192
"""Records or label sets after which a batch is delivered. It bounds memory."""

MOST_HELD = 65_536
"""Records that may wait for those of other CPUs. Beyond it, records may be delivered out of order."""


class PagesParser(Protocol):
    """Reads and walks pages, as ``_pages.PageParser`` does.

    ``join`` joins the halves of calls and pairs that the parser keeps, up to a moment, and adds their sums to
    a batch. Halves that were ``queued`` since the last time wait for it.
    """

    @property
    def time(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def has_losses(self) -> bool: ...
    def pull(self, fd: int, cpu: int, pages: int) -> int: ...
    def take(self) -> Batch: ...
    def join(self, batch: Batch | None, until: int | None = None) -> None: ...
    def drop(self, layout_id: int) -> None: ...
    def open_stacks(self, layout_id: int, now: int) -> tuple[list[StackTally], int]: ...
    def resume_from(self, before: Any) -> None: ...
    def set_own_threads(self, tids: Collection[int]) -> None: ...


class ThreadWatcher(Protocol):
    """Adds up the time of threads. The reader's thread calls its methods, between two rounds.

    ``watch`` begins with threads, unless their events have told what they do. ``end_thread`` ends one that
    was found to be gone, at a moment. ``cut_times`` adds up the time of all until now for the next round.
    ``lose_times``: from the last event until a moment, events may be missing without a loss.
    """

    def watch(self, threads: Iterable[Watched]) -> None: ...
    def watched(self) -> set[int]: ...
    def end_thread(self, tid: int, now: int) -> None: ...
    def cut_times(self, now: int) -> None: ...
    def lose_times(self, until: int) -> None: ...


class BinaryPipe:
    """The trace_pipe_raw of every CPU and their parser; ``deliver`` gets what arrived since its last call.

    The CPU whose last record is the oldest is read next. Records are delivered in time order, up to the
    latest moment before which no CPU can have an unread record. That moment, and MOST_HELD records, bound the
    window in which they are ordered. Losses do not wait, so no record later than the start of a loss is
    delivered before it. ``clock`` is the instance's, in nanoseconds. ``budget`` is the number of pages that a
    CPU's buffer holds, so the most that a round reads of it. ``page`` is the size of a page in bytes.
    ``own_threads`` returns the ids of this process's threads, whose activity is discarded.
    """

    pause = 0  # the kernel wakes the reader only when a buffer is half full

    def __init__(
        self,
        pipes: Mapping[int, int],
        parser: PagesParser,
        deliver: Callable[[Batch], None],
        budget: int,
        page: int = 4096,
        clock: Callable[[], int] = time.monotonic_ns,
        own_threads: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._pipes = pipes
        self._never_online: set[int] = set()
        self._parser = parser
        self._deliver = deliver
        self._budget = budget
        self._page = page
        self._clock = clock
        self._own_threads = own_threads
        self._held: list[Record] = []
        self._until = 0

    @property
    def descriptors(self) -> Sequence[int]:
        """Those of the CPUs that have a buffer, as far as is known: only their events can wake a reader."""
        return [pipe for cpu, pipe in self._pipes.items() if cpu not in self._never_online]

    def empty(self, *, last: bool) -> None:
        """Read what each CPU had at the call. Costs a system call per CPU, and two thirds of one per page."""
        started = self._clock()
        self._parser.set_own_threads(self._own_threads())
        left = dict.fromkeys(self._pipes, self._budget)
        share = min(PULL_BYTES, READ_AHEAD_BYTES // max(1, len(self._pipes)))
        pages = min(MOST_PAGES, max(1, share // self._page))
        # Starts of threads are read first: events of these threads need their processes.
        next_up = sorted((0, cpu < OF_THREADS, cpu) for cpu in self._pipes)
        while next_up:
            _, _, cpu = heappop(next_up)
            try:
                got = self._parser.pull(self._pipes[cpu], cpu, min(pages, left[cpu]))
            except OSError as error:
                raise SourceError(
                    f"per_cpu/cpu{cpu % OF_THREADS}/trace_pipe_raw cannot be read any more: {error.strerror}."
                ) from error
            if got == NEVER_ONLINE:
                self._never_online.add(cpu)
                continue
            self._never_online.discard(cpu)
            left[cpu] -= got
            if got and left[cpu] and self._parser.time < started:
                heappush(next_up, (self._parser.time, cpu < OF_THREADS, cpu))
            if next_up and (self._parser.waiting >= MANY or self._parser.queued >= MANY):
                self._join_or_hand_over(next_up[0][0])
        self._hand_over(None if last else started)

    def adopt(self, parser: PagesParser, threads: Mapping[int, int] | None = None) -> None:
        """Continue with a parser for other layouts, between two rounds. Records that wait are kept.

        ``threads`` are the trace_pipe_raw of events about threads, which are read from now on.
        """
        self._pipes = {**self._pipes, **{cpu + OF_THREADS: pipe for cpu, pipe in (threads or {}).items()}}
        self._hand_over(0)
        parser.resume_from(self._parser)
        self._parser = parser
        self._hand_over(0)  # the halves that have no join any more

    def open_stacks(self, layout_id: int) -> tuple[list[StackTally], int]:
        """Return the stacks of a join's outstanding first halves, and the number of those without one."""
        return self._parser.open_stacks(layout_id, self._clock())

    def drop(self, layout_id: int) -> None:
        """Drop the open first halves of a join; they are delivered as unpaired."""
        self._parser.drop(layout_id)

    @property
    def threads(self) -> ThreadWatcher:
        """The compiled parser, which adds up the time of threads."""
        return cast("ThreadWatcher", self._parser)

    def close(self) -> None:
        for descriptor in self._pipes.values():
            os.close(descriptor)

    def _join_or_hand_over(self, until: int) -> None:
        """Join what was read, and keep the sums for the end of the round, unless more has to be delivered."""
        if self._parser.waiting < MANY and not self._parser.has_losses:
            self._until = max(self._until, until)
            self._parser.join(None, until)
        else:
            self._hand_over(until)

    def _hand_over(self, until: int | None) -> None:
        """Deliver what the parser has; records only up to the moment ``until``, if it is given."""
        batch = self._parser.take()
        if batch.losses:
            batch.losses = self._narrowed(batch.losses)
        if until is not None:
            self._until = max(self._until, until)
        batch.reached = UNKNOWN if until is None else until
        self._parser.join(batch, until)
        if batch.records or self._held:
            records = sorted(self._held + batch.records, key=itemgetter(TIME))
            count = len(records)
            if until is not None and count <= MOST_HELD:
                count = bisect_right(records, until, key=itemgetter(TIME))
            batch.records, self._held = records[:count], records[count:]
        if batch != Batch():
            self._deliver(batch)

    def _narrowed(self, losses: list[Loss]) -> list[Loss]:
        """Narrow the losses: every CPU was read up to ``_until``, and no event is later than now."""
        now = self._clock()
        return [
            Loss(cpu, start, max(start, min(end, now)))
            for cpu, begun, end in losses
            for start in [max(begun, self._until)]
        ]
