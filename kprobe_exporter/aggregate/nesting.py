"""Which calls of a thread are open, so that the enclosing calls of an ended call are known."""

from itertools import islice

from kprobe_exporter.aggregate.open_calls import INHERITED, NEVER, Key, OpenCalls
from kprobe_exporter.model.values import CPU, LAYOUT_ID, TID, TIME, Join, Record

DEEPEST = 256
"""The most open calls that are examined, the innermost first; calls beyond it are not reported."""

MARGIN = 64
"""Bytes of stack. An open call farther below a new one has ended; a nearer one may have jumped to it."""


class NestedCalls(OpenCalls):
    """Open first halves, also listed by thread for the joins that are shown. The pairing owns it.

    A thread enters a system call with an empty kernel stack. So its calls that are still open then have ended
    without a return event, unless they are calls of its program's functions. This ends the calls of exit(2),
    of rt_sigreturn(2) and of functions that never return, and the calls of a dead thread whose id another
    thread has now. It happens at the thread's next system call that is shown, not earlier.

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
        if system_call or (join.by != "key" and not join.begins[0].user):
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
        for both. Calls that began before a loss are left out, because they are never joined.
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
