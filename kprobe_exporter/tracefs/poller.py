"""Reads the kernel's own counts, at most once a second, for all callers."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import MappingProxyType

from kprobe_exporter.model.hist import HistReading, HistTable
from kprobe_exporter.model.pairs import PairLoss
from kprobe_exporter.model.snapshot import KernelCounts
from kprobe_exporter.tracefs.hist_tables import parse_hist
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.pair_triggers import PairTriggers
from kprobe_exporter.tracefs.probes import Installed
from kprobe_exporter.tracefs.profile import PROFILED, Counts, buffer_stats, profile_counts
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

MAX_AGE = 1.0  # Seconds for which numbers that were read serve all callers


def read_counts(
    instance: Instance, probes: Sequence[Installed], pairs: Mapping[int, PairTriggers] = MappingProxyType({})
) -> KernelCounts:
    """Read everything that the kernel counts for us. Raises OSError if its files cannot be read.

    ``pairs`` are those that the kernel joins, by the joined layout's id.
    """
    hits: dict[str, int | None] = {}
    misses: dict[str, int | None] = {}
    counts: dict[str, Counts] = {}
    for file in PROFILED:
        if any(probe.spec.file == file for probe in probes):
            counts |= profile_counts(instance.files, instance.group, file)
    for probe in probes:
        if not probe.profiled:
            continue
        count = probe.since(counts.get(probe.event))
        if probe.spec.role != "end" and not probe.tables_count_hits:
            _add(hits, probe.spec.probe, count.hits if count else None)
        _add(misses, probe.spec.probe, count.misses if count else None)
    tables: dict[int, tuple[HistReading, ...]] = {}
    shown = cache(lambda file: parse_hist(instance.files.read(file)))  # two probes may share a tracepoint
    _read_open(pairs.values())
    for probe in probes:
        if probe.hist is None:
            continue
        try:
            found = shown(probe.hist)
        except OSError:
            if probe.hits is not None:
                _add(hits, probe.spec.probe, None)
            continue
        if probe.hits is not None:
            _add(hits, probe.spec.probe, probe.hits.total(found))
        if probe.tables is not None and (readings := probe.tables.read(found)) is not None:
            tables[probe.layout.layout_id] = readings
            if probe.tables_count_hits:
                _add(hits, probe.spec.probe, _hits(probe.spec.tables, readings))
    stats = buffer_stats(instance.files, instance.path)
    return KernelCounts(
        hits={probe: count for probe, count in hits.items() if count is not None},
        misses={probe: count for probe, count in misses.items() if count is not None},
        lost={"overrun": stats.overrun, "commit_overrun": stats.commit_overrun, "dropped": stats.dropped},
        buffer_bytes=stats.bytes,
        tables=tables,
        pairs=_losses(probes, pairs, tables, counts),
    )


def counted_by_trigger(probes: Iterable[Installed]) -> set[str]:
    """Return the names of the probes that record, and whose hits a hist trigger counts (see `HitCounter`)."""
    return {probe.spec.probe for probe in probes if probe.hits is not None}


def _read_open(pairs: Iterable[PairTriggers]) -> None:
    """Read the tables of open calls, before those of joined ones. A pair that goes keeps its last numbers."""
    for pair in pairs:
        with suppress(OSError):
            pair.read_open()


def _losses(
    probes: Iterable[Installed],
    pairs: Mapping[int, PairTriggers],
    tables: Mapping[int, Sequence[HistReading]],
    counts: Mapping[str, Counts],
) -> dict[int, PairLoss]:
    """Return what was not joined, by the joined layout's id."""
    found = {}
    for probe in probes:
        layout_id = probe.layout.layout_id
        if (pair := pairs.get(layout_id)) is not None and (readings := tables.get(layout_id)) is not None:
            found[layout_id] = pair.loss(_all(probe.spec.tables, readings), counts)
    return found


def _all(tables: Iterable[HistTable], readings: Iterable[HistReading]) -> HistReading:
    """Return the reading of a table without a condition, which counts all that is joined."""
    return next(one for table, one in zip(tables, readings, strict=True) if table.condition is None)


def _hits(tables: Iterable[HistTable], readings: Iterable[HistReading]) -> int:
    """Return the hits of an unfiltered probe, each of which is in one of the tables that count events."""
    counting = (reading for table, reading in zip(tables, readings, strict=True) if table.passed)
    return sum(reading.hits + reading.dropped for reading in counting)


def _add(sums: dict[str, int | None], probe: str, count: int | None) -> None:
    """Add to a probe's sum, which is None once a count is unknown: the sum of the others would be too low."""
    before = sums.get(probe, 0)
    sums[probe] = None if before is None or count is None else before + count


class Poller:
    """A thread that reads the kernel's counts on request, so that callers do not block in the kernel.

    ``_condition`` guards the state of the reads; the thread reads and delivers without holding it.
    ``refresh`` may be called from any thread; one read serves all callers that wait. If a read hangs in
    the kernel, a caller waits for its timeout at most: the last numbers stay, and ``age`` shows how old
    they are. ``close`` may be called twice; it waits at most 2 s for a read under way.
    """

    def __init__(
        self,
        read: Callable[[], KernelCounts],
        deliver: Callable[[KernelCounts], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._deliver = deliver
        self._clock = clock
        self._condition = threading.Condition()
        self._read_at = float("-inf")  # when the last successful read began: so old are its numbers at least
        self._served = float("-inf")  # when the last one that was not just for ``watching`` began
        self._begun = float("-inf")  # when the last read began, successful or not
        self._serving = False
        self._attempts = 0
        self._wanted = 0  # how many attempts are requested
        self._under_way = False
        self._closed = False
        self._trouble = Trouble()
        self._thread = threading.Thread(target=self._run, name="kprobe-poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def refresh(self, timeout: float, *, fresh: bool = False, watching: bool = False) -> bool:
        """Have numbers no older than MAX_AGE delivered. Return False if this takes more than ``timeout`` s.

        Numbers are as old as the start of their read, which takes seconds on a busy machine.
        ``fresh``: the read must start after this call; one under way may have read some numbers before it.
        ``watching``: numbers of any read serve, and a read for it does not count as a scrape's refresh.
        """
        with self._condition:
            now = self._clock()
            last = self._read_at if watching else self._served
            if (not fresh and now - last < MAX_AGE) or self._closed:
                return True
            self._serving |= not watching
            too_old = fresh or (not watching and now - self._begun >= MAX_AGE)
            wanted = self._attempts + (2 if self._under_way and too_old else 1)
            self._wanted = max(self._wanted, wanted)
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._attempts >= wanted or self._closed, timeout)

    def progress(self) -> int | None:
        """Return how many reads have ended, or None if no read is under way."""
        with self._condition:
            return self._attempts if self._under_way else None

    def age(self) -> float:
        """Return the seconds since the last successful read began; infinite before the first."""
        with self._condition:
            return self._clock() - self._read_at

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._attempts < self._wanted or self._closed)
                if self._closed:
                    return
                self._under_way = True
                self._begun = self._clock()
            good = self._attempt()
            with self._condition:
                self._attempts += 1
                self._under_way = False
                if good:
                    self._read_at = self._begun
                    if self._serving:
                        self._served, self._serving = self._begun, False
                self._condition.notify_all()

    def _attempt(self) -> bool:
        try:
            self._deliver(self._read())
        except Exception as error:  # the thread survives any error, and the last numbers stay
            if self._trouble.failed():
                bug = not isinstance(error, OSError)
                log.warning("the kernel's counts cannot be read: %s", error, exc_info=bug)
            return False
        if self._trouble.succeeded():
            log.info("the kernel's counts can be read again")
        return True
