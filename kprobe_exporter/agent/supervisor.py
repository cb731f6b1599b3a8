"""The agent's own timer: how often probes fire, held against their limits, and what that costs."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kprobe_exporter.agent.overhead import Overhead
from kprobe_exporter.agent.rate_limit import Budget, Trip
from kprobe_exporter.agent.rates import History

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds from one look to the next."""

SOON, LATE = 0.5, 3.0
"""Seconds from one reading of the counts to the next: sooner, it is the same one. Later, the counts have
stood still, and the kernel may have been asked at any moment in between: the next one tells the rate."""


STALE = 10.0
"""Seconds after which it is said that the counts are old."""


class Look(NamedTuple):
    """What is seen of all probes, by name: hits so far, of those that are counted; the limit of each, in
    hits a second; those that are up; seconds that a hit costs. ``limit`` is that of all together. ``age``
    is how many seconds ago the hits were read, infinite if nobody knows."""

    hits: Mapping[str, int] = {}
    limits: Mapping[str, float | None] = {}
    up: frozenset[str] = frozenset()
    costs: Mapping[str, float] = {}
    limit: float | None = None
    age: float = 0.0


class Watch:
    """A thread that looks once a second, whether or not anybody scrapes.

    It alone uses the budget; ``overhead`` and ``history`` may be read by any thread. ``disable`` and
    ``enable`` ask the kernel and may take a while: nobody waits for this thread but ``close``, and that
    for a bounded time. What goes wrong is logged once, and looked at again. Rates are hits over the time
    between two readings of the counts; while nobody can read them, no probe is judged.
    """

    def __init__(
        self,
        look: Callable[[], Look],
        disable: Callable[[Trip], object],
        enable: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.overhead = Overhead()
        self.history = History()
        self._look = look
        self._disable = disable
        self._enable = enable
        self._clock = clock
        self._budget = Budget()
        self._read_at = float("-inf")
        self._passed_over = self._stale = False
        self._complained = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kprobe-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def look(self) -> None:
        """One look, and what follows from it."""
        seen = self._look()
        read_at = self._clock() - seen.age
        self._tell(seen.age)
        self.overhead.update(seen.hits, seen.costs)
        if not self._is_news(read_at):
            return
        self.history.update(read_at, seen.hits)
        self._budget.limit(seen.limit)
        verdict = self._budget.watch(read_at, seen.hits, seen.limits, seen.up)
        for trip in verdict.tripped:
            log.warning("the probe '%s' is tripped: %s", trip.probe, trip)
            self._disable(trip)
        for name in verdict.again:
            log.info("the probe '%s' is tried again", name)
            self._enable(name)

    def _tell(self, age: float) -> None:
        """Of counts that are old, once, and when they are read again; while probes change nobody knows."""
        if self._stale and age < STALE:
            self._stale = False
            log.info("the kernel's counts are read again")
        elif not self._stale and STALE <= age < float("inf"):
            self._stale = True
            log.warning("the kernel's counts are %d s old: something holds up whoever reads tracefs", age)

    def _is_news(self, read_at: float) -> bool:
        """Whether it is another reading than the last one, and tells how much was counted until then."""
        seconds = read_at - self._read_at
        if not seconds > SOON:
            return False
        self._read_at = read_at
        # Not two of them, or nothing would be judged where every reading takes long.
        self._passed_over = LATE < seconds < float("inf") and not self._passed_over
        return not self._passed_over

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL):
            try:
                self.look()
            except Exception as error:  # whatever it is, the thread goes on
                if not self._complained:
                    log.exception("the probes cannot be watched: %s", error)
                self._complained = True
            else:
                self._complained = False
