"""The agent's own timer: it compares the probes' rates with their limits, and estimates their cost."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kprobe_exporter.agent.overhead import Overhead
from kprobe_exporter.agent.rate_limit import Budget, Trip
from kprobe_exporter.agent.rates import History
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks."""

SOON, LATE = 0.5, 3.0
"""Seconds between two readings of the counts. Below SOON, it is the same reading. Above LATE, the counts were
delayed and may be from any moment in between, so that only the next reading gives a rate."""


STALE = 10.0
"""Age of the counts, in seconds, from which a warning is logged."""


class Observation(NamedTuple):
    """The state of all probes, by name: the hits so far, of those that are counted; the limits, in hits per
    second; the probes that are up and not sampled; the seconds that a hit costs. ``limit`` is that of all
    together. ``age`` is how many seconds ago the hits were read, infinite if that is unknown. The probes
    ``critical`` are sampled where others are disabled; those in ``unlimited`` are left alone."""

    hits: Mapping[str, int] = {}
    limits: Mapping[str, float | None] = {}
    up: frozenset[str] = frozenset()
    costs: Mapping[str, float] = {}
    limit: float | None = None
    age: float = 0.0
    critical: frozenset[str] = frozenset()
    unlimited: frozenset[str] = frozenset()


class Supervisor:
    """A thread that looks at all probes once a second, independently of scrapes.

    It alone uses the budget; any thread may read ``overhead`` and ``history``. ``trip`` and ``enable``
    make system calls and may take a while: only ``close`` waits for this thread, for a bounded time. An
    error is logged once, and the thread goes on. Rates are hits over the time between two readings of the
    counts; while the counts cannot be read, no probe is judged.
    """

    def __init__(
        self,
        look: Callable[[], Observation],
        trip: Callable[[Trip], object],
        enable: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.overhead = Overhead()
        self.history = History()
        self._look = look
        self._trip = trip
        self._enable = enable
        self._clock = clock
        self._budget = Budget()
        self._read_at = float("-inf")
        self._passed_over = self._stale = False
        self._trouble = Trouble()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kprobe-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def look(self) -> None:
        """Look once, and disable, sample or enable probes accordingly."""
        seen = self._look()
        read_at = self._clock() - seen.age
        self._tell(seen.age)
        self.overhead.update(seen.hits, seen.costs)
        if not self._is_news(read_at):
            return
        self.history.update(read_at, seen.hits)
        self._budget.limit(seen.limit)
        judged = {name: hits for name, hits in seen.hits.items() if name not in seen.unlimited}
        verdict = self._budget.watch(read_at, judged, seen.limits, seen.up, seen.critical)
        for trip in verdict.tripped:
            log.warning("the probe '%s' is %s: %s", trip.probe, "sampled" if trip.one_in else "tripped", trip)
            self._trip(trip)
        for name in verdict.again:
            log.info(
                "the probe '%s' is %s",
                name,
                "recorded whole again" if name in seen.critical else "tried again",
            )
            self._enable(name)

    def _tell(self, age: float) -> None:
        """Log once that the counts are old, and once that they are read again. An infinite age is ignored."""
        if self._stale and age < STALE:
            self._stale = False
            log.info("the kernel's counts are read again")
        elif not self._stale and STALE <= age < float("inf"):
            self._stale = True
            log.warning("the kernel's counts are %d s old: something holds up all reads of tracefs", age)

    def _is_news(self, read_at: float) -> bool:
        """Return whether this is a new reading of the counts, whose time is known well enough for a rate."""
        seconds = read_at - self._read_at
        if not seconds > SOON:
            return False
        self._read_at = read_at
        # Never two in a row, or no probe would be judged where every reading takes long.
        self._passed_over = LATE < seconds < float("inf") and not self._passed_over
        return not self._passed_over

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL):
            try:
                self.look()
            except Exception as error:  # the thread goes on after any error
                if self._trouble.failed():
                    log.exception("the probes cannot be watched: %s", error)
            else:
                self._trouble.succeeded()
