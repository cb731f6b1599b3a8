"""The open first halves of calls and pairs, and the losses that make it unsafe to join them."""

from collections import Counter
from heapq import heappop, heappush
from itertools import islice
from typing import Any, TypeAlias

from kprobe_exporter.model.values import LAYOUT_ID, TIME, Loss, Record

Key: TypeAlias = tuple[Any, ...]  # the joined layout_id, then the values that both halves share

MOST_LOSSES = 1024  # losses that are not applied yet; more are merged into one that spans them all
NEVER = 1 << 64  # nanoseconds; no clock reaches it

INHERITED = -1
"""The layout_id that stands for a call that a forked child has from its parent: the child never made it."""


class OpenCalls:
    """The open first halves of all joins. Not thread-safe: the pairing owns it.

    ``lists`` holds them by the values that they share with their second halves, each after its place on the
    stack. No list is empty, and places fall along it; by ``key`` they are all 0, so there is one entry.
    ``unpaired`` counts halves by the joined layout_id.
    """

    __slots__ = ("_losses", "_most", "broken_until", "lists", "next_loss", "number", "unpaired")

    def __init__(self, most: int) -> None:
        self.lists: dict[Key, list[tuple[int, Record]]] = {}
        self.number = 0
        self.unpaired: Counter[int] = Counter()
        self.broken_until, self.next_loss = -NEVER, NEVER
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
        if self.number > self._most:
            room = self._most - self._most // 64
            for oldest in [*islice(self.lists, self.number - room)]:
                if self.number > room:
                    self.drop(oldest)

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
        later: list[tuple[int, Record]] = []
        ended: list[tuple[int, Record]] = []
        for call in self.lists[key]:
            (later if call[1][TIME] > time else ended).append(call)
        self._leave(key, ended)
        if later:
            self.lists[key] = later
        else:
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
        if own := sum(first[LAYOUT_ID] != INHERITED for _, first in ended):
            self.unpaired[key[0]] += own

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


def above(calls: list[tuple[int, Record]], place: int) -> int:
    """Return how many entries lie above a place of the stack; the others are at the end of the list."""
    left = len(calls)
    while left and calls[left - 1][0] <= place:
        left -= 1
    return left
