"""The agent's own timer: it compares the probes' rates with their limits, and estimates their cost."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kprobe_exporter.agent.overhead import Machine, Overhead
from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.agent.rate_limit import Budget, Trip, firings
from kprobe_exporter.config.model import CpuShare, Threshold
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks."""

SOON, LATE = 0.5, 3.0
"""Seconds between two readings of the counts. Below SOON, it is the same reading. Above LATE, the counts were
delayed and may be from any moment in between, so that only the next reading gives a rate."""

STALE = 10.0
"""Age of the counts, in seconds, from which a warning is logged."""

STEP, STEPS = 5.0, 60
"""The status page shows one rate every STEP seconds, STEPS of them: five minutes."""


class Observation(NamedTuple):
    """All probes, and the hits so far of those that are counted. ``limit`` is that of all together.
    ``age`` is how many seconds ago the hits were read, infinite if that is unknown."""

    hits: Mapping[str, int] = {}
    probes: Sequence[ProbeState] = ()
    limit: Threshold = None
    age: float = 0.0
    machine: Machine = Machine()


class History:
    """The last rates of each probe, in hits a second. One thread updates it, any may read it."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._hits: dict[str, int] = {}
        self._rates: dict[str, deque[float]] = {}

    def update(self, now: float, hits: Mapping[str, int]) -> None:
        """Take the hits so far, at a time in seconds of a monotonic clock. It may be called at any rate."""
        seconds = now - self._since
        if seconds < STEP:
            return
        rates: dict[str, deque[float]] = {}
        for name, count in hits.items():
            rates[name] = self._rates.get(name) or deque(maxlen=STEPS)
            if name in self._hits:
                rates[name].append(max(0, count - self._hits[name]) / seconds)
        self._since, self._hits, self._rates = now, dict(hits), rates

    def rates(self, name: str) -> tuple[float, ...]:
        """Return the rates, oldest first; empty for a probe with fewer than two readings."""
        return tuple(self._rates.get(name, ()))


def _firings(limit: Threshold, cost: float, cpus: int) -> float | None:
    return firings(limit.share, cost, cpus) if isinstance(limit, CpuShare) else limit


@dataclass(eq=False)
class Supervisor:
    """A thread that looks at all probes once a second, independently of scrapes.

    It alone uses the budget; any thread may read ``overhead`` and ``history``. ``trip`` and ``enable``
    make system calls and may take a while: only ``close`` waits for this thread, for a bounded time. An
    error is logged once, and the thread goes on. Rates are hits over the time between two readings of the
    counts; while the counts cannot be read, no probe is judged.
    """

    _look: Callable[[], Observation]
    _trip: Callable[[Trip], object]
    _enable: Callable[[str], object]
    _clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.overhead = Overhead()
        self.history = History()
        self._budget = Budget()
        self._costs: dict[str, float] = {}
        self._read_at = float("-inf")
        self._passed_over = self._stale = False
        self._trouble = Trouble()
        self._looks = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kprobe-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def progress(self) -> int:
        """Return a number that rises with every look."""
        return self._looks

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def look(self) -> None:
        """Look once, and disable, sample or enable probes accordingly.

        A critical probe is sampled where others are disabled; one that writes no events is left alone.
        """
        hits, probes, limit, age, machine = self._look()
        read_at = self._clock() - age
        self._tell(age)
        self._costs = costs = self._costs_now(probes, machine.slowness)
        self.overhead.update(hits, costs)
        if not self._is_news(read_at):
            return
        self.history.update(read_at, hits)
        critical = {probe.name: probe.records_events for probe in probes if probe.plan.probe.critical}
        judged = {name: count for name, count in hits.items() if critical.get(name, True)}
        configured = {probe.name: probe.plan.probe.limit for probe in probes}
        limits = {name: _firings(limit, costs[name], machine.cpus) for name, limit in configured.items()}
        shares = None
        if isinstance(limit, CpuShare):
            shares = {name: cost / machine.cpus for name, cost in costs.items()}
            limit = limit.share
        up = {probe.name for probe in probes if probe.records and probe.sample is None}
        verdict = self._budget.watch(read_at, judged, limits, limit, up, critical, shares)
        for trip in verdict.tripped:
            own = configured[trip.probe]
            if trip.most is None and isinstance(own, CpuShare):
                trip = trip._replace(share=own.share)  # noqa: PLW2901
            log.warning("the probe '%s' is %s: %s", trip.probe, "sampled" if trip.one_in else "tripped", trip)
            self._trip(trip)
        for name in verdict.again:
            log.info("the probe '%s' is %s again", name, "recorded whole" if name in critical else "tried")
            self._enable(name)

    def _costs_now(self, probes: Iterable[ProbeState], slowness: float) -> dict[str, float]:
        """Return the estimated seconds per hit on this machine. A probe that is off has its last estimate,
        so that its limit stays as it is."""
        return {probe.name: probe.cost * slowness or self._costs.get(probe.name, 0.0) for probe in probes}

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
            self._looks += 1
            try:
                self.look()
            except Exception as error:  # the thread goes on after any error
                if self._trouble.failed():
                    log.exception("the probes cannot be watched: %s", error)
            else:
                self._trouble.succeeded()
