"""The first halves of calls and pairs that wait for their second ones, and what casts doubt on them."""

from heapq import heappop, heappush
from itertools import islice
from typing import Any, TypeAlias

from kprobe_exporter.model.values import Loss, Record

Key: TypeAlias = tuple[Any, ...]  # the joined slot, then what both halves have in common

MOST_LOSSES = 1024  # windows that wait for their time; more become one that spans them all
NEVER = 1 << 64  # nanoseconds that no clock reaches


class Opened:
    """The open first halves of all joins. Not thread-safe: the pairing owns it.

    ``lists``, none empty, holds them by what they share with their second halves, each after its place
    on the stack. These places fall; by ``key`` they are all 0, so there is but one.
    """

    __slots__ = ("_losses", "_most", "broken_until", "lists", "next_loss", "number", "unpaired")

    def __init__(self, most: int) -> None:
        self.lists: dict[Key, list[tuple[int, Record]]] = {}
        self.number = self.unpaired = 0
        self.broken_until, self.next_loss = -NEVER, NEVER
        self._most = most
        self._losses: list[tuple[int, int]] = []

    def put(self, key: Key, place: int, first: Record) -> None:
        """What is open at the same place or below has ended unnoticed, or the place would not be free."""
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
        """The last one of a list."""
        calls = self.lists[key]
        self.number -= 1
        if len(calls) == 1:
            del self.lists[key]
        return calls.pop()[1]

    def drop(self, key: Key, left: int = 0) -> None:
        """All but the first ``left`` of a list are unpaired."""
        calls = self.lists[key]
        gone = len(calls) - left
        self.number -= gone
        self.unpaired += gone
        del calls[left:]
        if not calls:
            del self.lists[key]

    def tell(self, loss: Loss) -> None:
        losses = self._losses
        heappush(losses, (loss.start, loss.end))
        if len(losses) > MOST_LOSSES:
            losses[:] = [(losses[0][0], max(end for _, end in losses))]
        self.next_loss = losses[0][0]

    def advance(self, now: int) -> None:
        """Of what ends now, nothing is sure that began before the end of a loss that has begun."""
        losses = self._losses
        while losses and losses[0][0] < now:
            self.broken_until = max(self.broken_until, heappop(losses)[1])
        self.next_loss = losses[0][0] if losses else NEVER


def above(calls: list[tuple[int, Record]], place: int) -> int:
    """How many are above a place of the stack; the others are at the end of the list."""
    left = len(calls)
    while left and calls[left - 1][0] <= place:
        left -= 1
    return left
