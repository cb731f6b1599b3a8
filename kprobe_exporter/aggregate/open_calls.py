"""The open first halves of calls and pairs, the losses after which they are not joined, and their nesting."""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import Any, TypeAlias

from kprobe_exporter.model.records import CPU, LAYOUT_ID, TID, TIME, Join, Loss, Record

Key: TypeAlias = tuple[Any, ...]  # the joined layout_id, then the values that both halves share

MOST_LOSSES = 1024  # losses that are not applied yet; more are merged into one that spans them all
NEVER = 1 << 64  # nanoseconds; no clock reaches it

INHERITED = -1
"""The layout_id that stands for a call that a forked child has from its parent: the child never made it."""

DEEPEST = 256
"""The most open calls that are examined, the innermost first; calls beyond it are not reported."""

MARGIN = 64
"""Bytes of stack. An open call farther below a new one has ended; a nearer one may have jumped to it."""


class OpenCalls:
    """The open first halves of all joins. Not thread-safe: the pairing owns it.

    ``lists`` holds them by the values that they share with their second halves, each after its place on the
    stack. No list is empty, and places fall along it; by ``key`` they are all 0, so there is one entry.
    ``unpaired`` counts halves by the joined layout_id; those that began before ``told_until`` were counted
    when a loss broke them, though they are still open. ``evicted`` counts the unpaired halves that `trim`
    dropped. ``only`` has the test of `Join.only` by layout_id.
    ``steps`` are the times of the steps so far, by id() of the first half.
    """

    __slots__ = (
        "_losses",
        "_most",
        "broken_until",
        "evicted",
        "lists",
        "next_loss",
        "number",
        "only",
        "steps",
        "told_until",
        "unpaired",
    )

    def __init__(self, most: int) -> None:
        self.lists: dict[Key, list[tuple[int, Record]]] = {}
        self.number = 0
        self.unpaired: Counter[int] = Counter()
        self.evicted: Counter[int] = Counter()
        self.only: dict[int, Callable[[Record], bool]] = {}
        self.steps: dict[int, list[int | None]] = {}
        self.broken_until, self.told_until, self.next_loss = -NEVER, -NEVER, NEVER
        self._most = most
        self._losses: list[tuple[int, int]] = []

    def put(self, key: Key, place: int, first: Record) -> None:
        """Add a first half. Those at its place or below have ended, or the place would not be free."""
        calls = self.lists.get(key)
        if calls is not None and calls[-1][0] <= place:
            self.drop(key, above(calls, place))
            calls = self.lists.get(key)
        if calls is None:
            self.lists[key] = [(place, first)]
        else:
            calls.append((place, first))
        self.number += 1
        if first[TIME] < self.told_until:
            self.lose(key[0], first)
        if self.number > self._most:
            self.trim()

    def trim(self) -> None:
        """Drop the oldest lists, if more is open than the bound allows."""
        if self.number <= self._most:
            return
        room = self._most - self._most // 64
        for oldest in [*islice(self.lists, self.number - room)]:
            if self.number > room:
                before = self.unpaired[oldest[0]]
                self.drop(oldest)
                if dropped := self.unpaired[oldest[0]] - before:
                    self.evicted[oldest[0]] += dropped

    def pop(self, key: Key) -> Record:
        """Remove and return the last first half of a list."""
        calls = self.lists[key]
        self.number -= 1
        if len(calls) == 1:
            del self.lists[key]
        return calls.pop()[1]

    def drop(self, key: Key, left: int = 0) -> None:
        """Drop all but the first ``left`` of a list, and count them as unpaired."""
        calls = self.lists[key]
        self._leave(key, calls[left:])
        del calls[left:]
        if not calls:
            del self.lists[key]

    def drop_until(self, key: Key, time: int) -> None:
        """Drop the calls of a list that began at this time or earlier, and count them as unpaired."""
        calls = self.lists[key]
        self._leave(key, [call for call in calls if call[1][TIME] <= time])
        calls[:] = [call for call in calls if call[1][TIME] > time]
        if not calls:
            del self.lists[key]

    def inherit(self, key: Key, child: Key, time: int) -> bool:
        """Copy the calls of a list for a child forked at ``time``, as INHERITED; return False without any."""
        calls = self.lists.get(key)
        if calls is None:
            return False
        if child in self.lists:
            self.drop(child)
        self.lists[child] = [(place, (INHERITED, time)) for place, _ in calls]
        self.number += len(calls)
        return True

    def rename(self, key: Key, new: Key) -> None:
        """Give the calls of a list another key, whose own calls have ended."""
        if new in self.lists:
            self.drop(new)
        self.lists[new] = self.lists.pop(key)

    def _leave(self, key: Key, ended: list[tuple[int, Record]]) -> None:
        """Count these calls as no longer open, and as unpaired if the thread made them."""
        self.number -= len(ended)
        for _, first in ended:
            self.steps.pop(id(first), None)
            if not self.is_told(first):
                self.lose(key[0], first)

    def is_told(self, first: Record) -> bool:
        """Return whether an open first half has been counted as unpaired."""
        return bool(first[TIME] < self.told_until)

    def lose(self, joined: int, first: Record, halves: int = 1) -> None:
        """Count halves as unpaired, if the thread made the call and the join's filter may let it pass."""
        if self._is_loss(first):
            self.unpaired[joined] += halves

    def outstanding(self, layout_id: int, before: int) -> list[Record]:
        """Return the open first halves of a join that began before a moment, and that no loss broke."""
        return [
            first
            for key, calls in self.lists.items()
            if key[0] == layout_id
            for _, first in calls
            if self.broken_until <= first[TIME] < before and self._is_loss(first)
        ]

    def _is_loss(self, first: Record) -> bool:
        """Return whether the thread made the call, and the join's filter may let it pass."""
        only = self.only.get(first[LAYOUT_ID])
        return first[LAYOUT_ID] != INHERITED and (only is None or only(first))

    def tell(self, loss: Loss) -> None:
        losses = self._losses
        heappush(losses, (loss.start, loss.end))
        if len(losses) > MOST_LOSSES:
            losses[:] = [(losses[0][0], max(end for _, end in losses))]
        self.next_loss = losses[0][0]

    def advance(self, now: int) -> None:
        """Apply the losses that began before ``now``: what began before their end is not joined any more."""
        losses = self._losses
        while losses and losses[0][0] < now:
            self.broken_until = max(self.broken_until, heappop(losses)[1])
        self.next_loss = losses[0][0] if losses else NEVER

    def count_broken(self, reached: int) -> None:
        """Count the open halves that a loss before ``reached`` broke: all that came up to then was joined."""
        if reached > self.next_loss:
            self.advance(reached)
        before, until = self.told_until, min(self.broken_until, reached)
        if until <= before:
            return
        self.told_until = until
        for key, calls in self.lists.items():
            for _, first in calls:
                if before <= first[TIME] < until:
                    self.lose(key[0], first)


class NestedCalls(OpenCalls):
    """Open first halves, also listed by thread for the joins that are shown. The pairing owns it.

    A thread enters a system call with an empty kernel stack. So its calls that are still open then have ended
    without a return event, unless they are calls of its program's functions. This ends the calls of exit(2),
    of rt_sigreturn(2) and of functions that never return. It also ends the calls of a dead thread whose id
    another thread has now. It happens at the thread's next system call that is shown, not earlier.

    Costs 0.2 µs more per half, also for the halves of joins that are not shown.
    """

    __slots__ = ("_entered", "_in_kernel", "_shown", "_system_calls", "_threads")

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._shown: set[int] = set()
        self._system_calls: set[int] = set()
        self._in_kernel: set[int] = set()
        self._threads: dict[int, dict[int, tuple[Key, int, Record]]] = {}
        self._entered: dict[int, int] = {}  # when a thread's last system call began

    def show(self, join: Join, *, system_call: bool) -> None:
        """List the calls of a join among those that enclose other calls."""
        layout_id = join.layout.layout_id
        self._shown.add(layout_id)
        if system_call:
            self._system_calls.add(layout_id)
        if system_call or (join.by == "stack" and not join.begins[0].user):
            self._in_kernel.add(layout_id)

    def hide(self, join: Join) -> None:
        """Undo ``show``. None of the join's calls may be open."""
        for known in (self._shown, self._system_calls, self._in_kernel):
            known.discard(join.layout.layout_id)

    def put(self, key: Key, place: int, first: Record) -> None:
        if key[0] in self._shown:
            thread = _thread(first)
            calls = self._threads.setdefault(thread, {})
            if key[0] in self._system_calls:
                self._entered[thread] = first[TIME]
            elif len(key) == 3:
                _bury(calls, key, place)
            calls[id(first)] = (key, place, first)
        super().put(key, place, first)

    def pop(self, key: Key) -> Record:
        first = super().pop(key)
        if key[0] in self._shown:
            self._forget(first)
        return first

    def _leave(self, key: Key, ended: list[tuple[int, Record]]) -> None:
        super()._leave(key, ended)
        for _, first in ended:
            self._forget(first)

    def enclosing(self, record: Record) -> list[Record]:
        """Return the first halves of its thread's open calls that began no later, the innermost first.

        A call in an interrupt is nested in the interrupted call, because the kernel reports the same thread
        for both. Calls that began before a loss are omitted, because they are never joined.
        """
        thread, now = _thread(record), record[TIME]
        calls = self._threads.get(thread)
        if calls is None:
            return []
        if now > self.next_loss:
            self.advance(now)
        since, in_kernel = self.broken_until, self._in_kernel
        entered = max(since, self._entered.get(thread, -NEVER))
        return [
            first
            for key, _, first in islice(reversed(calls.values()), DEEPEST)
            if (entered if key[0] in in_kernel else since) <= first[TIME] <= now
        ]

    def _forget(self, first: Record) -> None:
        if first[LAYOUT_ID] == INHERITED:
            return
        thread = _thread(first)
        calls = self._threads.get(thread)
        if calls is not None:
            calls.pop(id(first), None)
            if not calls:
                del self._threads[thread]
                self._entered.pop(thread, None)


def _thread(record: Record) -> int:
    """Return the thread's id; for thread 0, which each CPU has, ~CPU (init_idle() in kernel/sched/core.c)."""
    thread: int = record[TID] or ~record[CPU]
    return thread


def _bury(calls: dict[int, tuple[Key, int, Record]], key: Key, place: int) -> None:
    """Forget the innermost calls below a new call on the same stack: they ended without a return event."""
    while calls:
        ours, (other, below, _) = next(reversed(calls.items()))
        if other[2:] != key[2:] or below >= place - MARGIN:
            return
        del calls[ours]


def above(calls: list[tuple[int, Record]], place: int) -> int:
    """Return how many entries lie above a place of the stack; the others are at the end of the list."""
    left = len(calls)
    while left and calls[left - 1][0] <= place:
        left -= 1
    return left
