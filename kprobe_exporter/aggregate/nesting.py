"""Which calls of a thread are open, so that one which ends can be told what it was nested in."""

from itertools import islice

from kprobe_exporter.aggregate.opened import NEVER, Key, Opened
from kprobe_exporter.model.values import CPU, TID, TIME, Join, Record

DEEPEST = 256
"""Calls that are looked at outwards; what lies deeper in others counts as nested in so many of them."""

MARGIN = 64
"""Bytes of stack by which a call has to be below the one that called it, or it may be a jump to it."""


class Nested(Opened):
    """Open first halves, and those of the shown joins by thread as well. The pairing owns it.

    A thread enters a system call with nothing on its kernel stack: what it was in before has ended, though
    nobody told, but for functions of its program. So end exit(2) and rt_sigreturn(2), what never returns, and
    the calls of a thread that died, whose id another has now. That is seen at the next system call which is
    shown, and not before.

    Costs 0.2 µs a half more, that of no shown join too.
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
        """Have the calls of a join among those that others lie in."""
        slot = join.layout.slot
        self._shown.add(slot)
        if system_call:
            self._system_calls.add(slot)
        if system_call or (join.by != "key" and not join.begins[0].user):
            self._in_kernel.add(slot)

    def hide(self, join: Join) -> None:
        """Have them there no more; none of them may be open."""
        for known in (self._shown, self._system_calls, self._in_kernel):
            known.discard(join.layout.slot)

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

    def drop(self, key: Key, left: int = 0) -> None:
        if key[0] in self._shown:
            for _, first in self.lists[key][left:]:
                self._forget(first)
        super().drop(key, left)

    def enclosing(self, record: Record) -> list[Record]:
        """The first halves of its thread's open calls that began no later, the innermost first.

        So a call in an interrupt lies in the one that was interrupted, for the kernel shows the same
        thread. Left out is what began before a loss: it is not joined any more, whatever comes.
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
        thread = _thread(first)
        calls = self._threads.get(thread)
        if calls is not None:
            calls.pop(id(first), None)
            if not calls:
                del self._threads[thread]
                self._entered.pop(thread, None)


def _thread(record: Record) -> int:
    """Thread 0 is another one on each CPU (init_idle() in kernel/sched/core.c)."""
    thread: int = record[TID] or ~record[CPU]
    return thread


def _bury(calls: dict[int, tuple[Key, int, Record]], key: Key, place: int) -> None:
    """Forget the innermost ones that lie below a new call on the same stack: they have ended unnoticed."""
    while calls:
        ours, (other, below, _) = next(reversed(calls.items()))
        if other[2:] != key[2:] or below >= place - MARGIN:
            return
        del calls[ours]
