"""The time of threads by class: the class of each thread between two events of the scheduler, added up.

A thread's time is cut at its events, and each piece has one class, so the classes add up to that time.

    event                                  the piece before it              the thread is then
    sched_switch away, in state R          running                          waiting_for_cpu
    sched_switch away, in another state    running                          asleep, by the class of its stack
    sched_waking, or sched_wakeup          the class of the stack           waiting_for_cpu
    sched_switch to it                     waiting_for_cpu                  running
    the end of an interval                 the class that the thread has    unchanged

A piece whose beginning and end contradict each other is ``unaccounted``, and so is the time from a loss to
the thread's next event. At the start the state of a thread is unknown, but its first event tells it: a thread
that leaves a CPU has been running. /proc tells what a sleeping thread waits for, see `Observed`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kprobe_exporter.aggregate.stack_classes import RUNNING, UNACCOUNTED, WAITING

ENDED = 0x10 | 0x20
"""States in which a thread leaves its CPU for good: EXIT_DEAD, EXIT_ZOMBIE (include/linux/sched.h)."""

ASLEEP = 0xFF
"""All states but R, which is 0. One that was preempted has 0x100 (TASK_REPORT_MAX), which is not a sleep."""

MIN_RUN_NS = 20_000_000
"""Nanoseconds after which a thread that runs has more run time in /proc: several ticks of the timer."""


class Observed(NamedTuple):
    """The facts of /proc about a thread ``at`` a moment: the ``class_`` of its sleep, or how long it ``ran``.

    Both are None if they could not be read.
    """

    at: int
    class_: str | None = None
    ran: int | None = None

    def asleep_by(self, time: int) -> bool:
        """Whether the thread was seen asleep before ``time``."""
        return self.class_ is not None and self.at <= time


class _Thread:
    """A thread: its class since a moment. ``observed``: it has had no event, and this is known of it."""

    __slots__ = ("class_", "observed", "since")

    def __init__(self, class_: str, since: int, observed: Observed | None = None) -> None:
        self.class_, self.since, self.observed = class_, since, observed


class ThreadTimes:
    """Adds up nanoseconds by thread and class. Its methods have to be called in the order of time.

    ``add`` is called with a thread, a class and nanoseconds. Threads that it was not told of are ignored. A
    moment that is earlier than the last one of its thread takes no time. Not thread-safe.
    """

    def __init__(self, add: Callable[[int, str, int], object]) -> None:
        self._add = add
        self._threads: dict[int, _Thread] = {}

    def __contains__(self, tid: int) -> bool:
        return tid in self._threads

    @property
    def threads(self) -> Collection[int]:
        """The threads that live."""
        return self._threads.keys()

    def watch(self, tid: int, since: int, observed: Observed | None = None) -> None:
        """Begin with a thread whose state is unknown, but for what was observed."""
        self._threads[tid] = _Thread(UNACCOUNTED, since, observed)

    def born(self, tid: int, time: int) -> None:
        """Begin with a thread that waits for its first CPU."""
        self._threads[tid] = _Thread(WAITING, time)

    def left(self, tid: int, time: int) -> None:
        """End a thread that was found to be gone: what it did since its last event is not known."""
        if (thread := self._threads.pop(tid, None)) is not None:
            self._book(tid, thread, time, UNACCOUNTED)

    def switched_away(self, tid: int, time: int, state: int, class_: str) -> None:
        """Take a thread off its CPU; ``class_`` is that of its stack."""
        if (thread := self._threads.get(tid)) is None:
            return
        if thread.observed is not None:
            known = not thread.observed.asleep_by(time)
        else:
            known = thread.class_ == RUNNING
        self._book(tid, thread, time, RUNNING if known else UNACCOUNTED)
        if state & ENDED:
            del self._threads[tid]
        else:
            thread.class_ = class_ if state & ASLEEP else WAITING

    def switched_to(self, tid: int, time: int) -> None:
        """Give a thread a CPU.

        One that left its CPU in a state of sleep and was not woken has stayed runnable, because a signal was
        pending (try_to_block_task() in kernel/sched/core.c; the event has the state of before).
        """
        if (thread := self._threads.get(tid)) is None:
            return
        if thread.observed is not None:
            known = not thread.observed.asleep_by(time)
        else:
            known = thread.class_ not in (RUNNING, UNACCOUNTED)
        self._book(tid, thread, time, WAITING if known else UNACCOUNTED)
        thread.class_ = RUNNING

    def woken(self, tid: int, time: int) -> None:
        """Wake a thread. One that has a CPU, or waits for one, is not affected."""
        thread = self._threads.get(tid)
        if thread is None or thread.class_ in (RUNNING, WAITING):
            return
        class_ = thread.class_
        if (observed := thread.observed) is not None and observed.at <= time:
            if observed.class_ is None and observed.ran is not None:
                return  # it was not asleep: it wakes itself before it has left its CPU
            class_ = observed.class_ or UNACCOUNTED
        self._book(tid, thread, time, class_)
        thread.class_ = WAITING

    def lost(self, time: int) -> None:
        """Take note that events went missing: no state is known from then on."""
        for tid, thread in self._threads.items():
            self._book(tid, thread, time, self._present(thread))
            thread.class_ = UNACCOUNTED

    def flush(self, time: int, ran: Callable[[int], int | None] = lambda _: None) -> None:
        """Add the time until now of all threads. ``ran`` tells how long a thread has run in all."""
        for tid, thread in self._threads.items():
            observed = thread.observed
            if observed is None:
                self._book(tid, thread, time, thread.class_)
                continue
            class_ = self._present(thread)
            if class_ == UNACCOUNTED and observed.ran is not None and time - observed.at >= MIN_RUN_NS:
                now = ran(tid)  # it had no event, so that it ran all the time, or never
                class_ = UNACCOUNTED if now is None else RUNNING if now > observed.ran else WAITING
            if class_ == UNACCOUNTED:
                self._add(tid, class_, max(0, time - thread.since))
                thread.since = max(time, thread.since)
            else:
                self._book(tid, thread, time, class_)
                thread.class_ = class_

    def _present(self, thread: _Thread) -> str:
        """Return the class that a thread has now, as far as it is known."""
        if thread.observed is None:
            return thread.class_
        return UNACCOUNTED if thread.observed.class_ is None else thread.observed.class_

    def _book(self, tid: int, thread: _Thread, time: int, class_: str) -> None:
        if time > thread.since:
            self._add(tid, class_, time - thread.since)
            thread.since = time
        thread.observed = None


class Totals:
    """Nanoseconds by the labels of threads and by class, and by the labels alone, since they were taken.

    ``labels`` returns those of a thread.
    """

    def __init__(self, labels: Callable[[int], tuple[str, ...]] = lambda _: ()) -> None:
        self._labels = labels
        self._by_class: Counter[tuple[str, ...]] = Counter()
        self._all: Counter[tuple[str, ...]] = Counter()

    def add(self, tid: int, class_: str, nanoseconds: int) -> None:
        labels = self._labels(tid)
        self._by_class[(*labels, class_)] += nanoseconds
        self._all[labels] += nanoseconds

    def take(self) -> tuple[Mapping[tuple[str, ...], int], Mapping[tuple[str, ...], int]]:
        """Return the sums by labels and class, and those by labels; they begin at 0 again."""
        found = self._by_class, self._all
        self._by_class, self._all = Counter(), Counter()
        return found
