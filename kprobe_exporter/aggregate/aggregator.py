"""All the numbers of the agent, fed by events and by the kernel's counts, copied at a scrape."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kprobe_exporter.aggregate.accumulator import Accumulator
from kprobe_exporter.aggregate.numbers import MetricNumbers, Numbers, ProbeNumbers, built_in, family
from kprobe_exporter.aggregate.recipes import (
    Take,
    counter_take,
    gauge_take,
    histogram_take,
    refuse_many,
    return_takes,
)
from kprobe_exporter.aggregate.series import Limits, Series
from kprobe_exporter.aggregate.tables import Tables
from kprobe_exporter.aggregate.updates import (
    HistogramCell,
    Refuse,
    Update,
    counter_update,
    duration_update,
    gauge_update,
    guarded,
    histogram_update,
    passes,
    return_update,
)
from kprobe_exporter.hist import HistTable
from kprobe_exporter.model import (
    SLOT,
    Batch,
    CgroupOf,
    Exemplar,
    KernelCounts,
    Layout,
    MetricSpec,
    ProbeMetrics,
    Record,
    Where,
)

K = TypeVar("K")

UPDATES: dict[str, Callable[[Layout, MetricSpec, Series[Any], Refuse, CgroupOf | None], Update]] = {
    "counter": counter_update,
    "gauge": gauge_update,
    "histogram": histogram_update,
}


TAKES: dict[str, Callable[[MetricSpec, Series[Any]], Take]] = {
    "counter": counter_take,
    "gauge": gauge_take,
    "histogram": histogram_take,
}


class Aggregator:
    """Keeps every number that is exported.

    ``_lock`` guards all state. The reader's thread holds it for a batch, the poller's for an
    update, a scrape while it copies; nothing is formatted, read or waited for under it. Counters
    never go down.
    """

    def __init__(
        self,
        namespace: str,
        limits: Limits,
        errno_name: Callable[[int], str | None],
        cgroup: CgroupOf | None = None,
    ) -> None:
        self._namespace = namespace
        self._cgroup = cgroup
        self._limits = limits
        self._expired = limits.clock()
        self._errno_name = errno_name
        self._lock = threading.Lock()
        self._probes: dict[str, ProbeNumbers] = {}
        self._metrics: dict[str, MetricNumbers] = {}
        self._updates: dict[int, list[Update]] = {}
        self._takes: dict[int, list[Take]] = {}
        self._tables: dict[int, Tables] = {}
        self._probe_of: dict[int, str] = {}
        self._arrived: Counter[int] = Counter()
        self._filtered_here: set[int] = set()
        self._let_through: Counter[int] = Counter()
        self._counted_here: dict[str, list[int]] = {}
        self._kernel_hits: set[str] = set()
        self._kernel_misses: set[str] = set()
        self._lost: defaultdict[str, Accumulator] = defaultdict(Accumulator)
        self._lost_here: Counter[str] = Counter()
        self._decode_failures: Counter[str] = Counter()
        self._buffer_bytes = 0

    def declare(self, probe: ProbeMetrics) -> None:
        """Make a probe's metrics known, so that they are there from the start, installed or not."""
        with self._lock:
            cell = HistogramCell(len(probe.return_buckets))
            durations = HistogramCell(len(probe.duration_buckets))
            self._probes[probe.probe] = ProbeNumbers(probe, Accumulator(), Accumulator(), cell, durations, {})
            for spec in probe.metrics:
                if spec.name not in self._metrics:
                    self._metrics[spec.name] = self._metric(spec)

    def attach(
        self,
        layout: Layout,
        *,
        count_hits: bool = False,
        only: Where | None = None,
        tables: Sequence[HistTable] = (),
        begins: Sequence[Layout] = (),
    ) -> None:
        """Get ready for the events of an installed probe that was declared, or for its ``tables``.

        ``count_hits``: nobody in the kernel counts its firings, so what comes is counted as hits.
        ``only``: the kernel did not filter, so what does not pass is a hit but no event. ``begins`` are
        the first events of a call or a pair, of which each is a hit; they come as a count only.
        """
        with self._lock:
            probe = self._probes[layout.probe]
            updates = [self._update(layout, spec) for spec in probe.metrics.metrics]
            takes = [
                TAKES[spec.kind](spec, self._metrics[spec.name].series) for spec in probe.metrics.metrics
            ]
            takes += return_takes(probe.returned, probe.errors)
            self._takes[layout.slot] = takes
            if layout.returns is not None and layout.place("return") is not None:
                updates.append(
                    return_update(
                        layout,
                        layout.returns,
                        probe.metrics.return_buckets,
                        probe.returned,
                        partial(_count, probe.errors),
                    )
                )
            if layout.place("duration") is not None:
                updates.append(duration_update(layout, probe.metrics.duration_buckets, probe.durations))
            if only is not None:
                updates = [guarded(passes(layout, only), self._passed(layout.slot, updates))]
                self._filtered_here.add(layout.slot)
            self._updates[layout.slot] = updates
            self._tables[layout.slot] = Tables(layout, probe.metrics, tables)
            self._probe_of[layout.slot] = layout.probe
            if count_hits:
                self._counted_here[layout.probe] = [one.slot for one in begins or (layout,)]

    def watch(self, slot: int, handle: Callable[[Record], None]) -> None:
        """Have the records of a layout that is no probe's handled, in their place between the others."""
        with self._lock:
            self._updates[slot] = [handle]

    def also(self, slot: int, handle: Callable[[Record], None]) -> None:
        """Have the records of an attached layout handled as well, each in its place."""
        with self._lock:
            self._updates[slot].append(handle)

    def detach(self, layout: Layout) -> None:
        """It did not come up after all: no events of it will come, and nobody counts its hits."""
        with self._lock:
            self._counted_here.pop(layout.probe, None)

    def consume(self, batch: Batch) -> None:
        """Count a batch of events: one by one, or by what the source says that they came to."""
        arrived, updates = self._arrived, self._updates
        with self._lock:
            self._expire()
            for record in batch.records:
                slot = record[SLOT]
                arrived[slot] += 1
                for update in updates[slot]:
                    update(record)
            arrived.update(batch.arrived)
            self._let_through.update(batch.passed)
            for tally in batch.tallies:
                self._takes[tally.slot][tally.group](tally)
            for refused in batch.refused:
                refuse_many(refused, partial(_count, self._lost_here))
            if batch.unparsed:
                self._lost_here["unparsed"] += batch.unparsed
            if batch.unpaired:
                self._lost_here["unpaired"] += batch.unpaired

    def exemplify(self, probe: str, exemplar: Exemplar) -> None:
        """Let a call that was exported stand for its bucket of the probe's durations."""
        with self._lock:
            numbers = self._probes[probe]
            numbers.durations.exemplify(numbers.metrics.duration_buckets, exemplar)

    def update_kernel(self, counts: KernelCounts) -> None:
        """Take what the kernel counted."""
        with self._lock:
            for name, hits in counts.hits.items():
                self._probes[name].hits.update(hits)
                self._kernel_hits.add(name)
            for name, misses in counts.misses.items():
                self._probes[name].misses.update(misses)
                self._kernel_misses.add(name)
            for reason, lost in counts.lost.items():
                self._lost[reason].update(lost)
            self._buffer_bytes = counts.buffer_bytes
        for slot, readings in counts.tables.items():
            if slot in self._tables:
                self.consume(self._tables[slot].since(readings))

    def copy(self) -> Numbers:
        """Everything as it is now."""
        with self._lock:
            self._expire()
            late = {slot: self._let_through[slot] for slot in self._filtered_here}
            events = self._by_probe(dict(self._arrived) | late)
            hits, misses = {}, {}
            for name, probe in self._probes.items():
                if name in self._kernel_hits:
                    hits[name] = probe.hits.total
                elif name in self._counted_here:
                    hits[name] = sum(self._arrived[slot] for slot in self._counted_here[name])
                if name in self._kernel_misses:
                    misses[name] = probe.misses.total
            return Numbers(
                families=(
                    *built_in(self._namespace, self._probes, hits, misses, self._errno_name),
                    *(family(metric) for metric in self._metrics.values()),
                ),
                hits=hits,
                misses=misses,
                events=events,
                lost={
                    **{reason: lost.total for reason, lost in self._lost.items()},
                    **self._lost_here,
                },
                overflows={name: metric.series.overflowed for name, metric in self._metrics.items()},
                decode_failures=dict(self._decode_failures),
                buffer_bytes=self._buffer_bytes,
            )

    def _by_probe(self, counts: Mapping[int, int]) -> dict[str, int]:
        """Counts by layout, added up by probe."""
        total = dict.fromkeys(self._probes, 0)
        for slot, count in counts.items():
            if slot in self._probe_of:
                total[self._probe_of[slot]] += count
        return total

    def _passed(self, slot: int, updates: list[Update]) -> Update:
        """What an event does that passed a filter of ours."""

        def passed(record: Record) -> None:
            self._let_through[slot] += 1
            for update in updates:
                update(record)

        return passed

    def _expire(self) -> None:
        """Every quarter of the time to live, forget the label sets that are over it."""
        limits = self._limits
        if limits.ttl and limits.clock() - self._expired >= limits.ttl / 4:
            self._expired = limits.clock()
            for metric in self._metrics.values():
                metric.series.expire()

    def _metric(self, spec: MetricSpec) -> MetricNumbers:
        make = partial(HistogramCell, len(spec.buckets)) if spec.kind == "histogram" else _number
        failed = partial(_count, self._decode_failures)
        return MetricNumbers(spec, Series(spec.labels, make, self._limits, failed))

    def _update(self, layout: Layout, spec: MetricSpec) -> Update:
        refuse = partial(_count, self._lost_here)
        update = UPDATES[spec.kind](layout, spec, self._metrics[spec.name].series, refuse, self._cgroup)
        return guarded(passes(layout, spec.where), update) if spec.where else update


def _number() -> list[float]:
    """A counter's or gauge's cell."""
    return [0]


def _count(counter: dict[K, int], key: K, count: int = 1) -> None:
    counter[key] = counter.get(key, 0) + count
