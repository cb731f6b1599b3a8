"""All numbers of the agent: fed by events and by the kernel's counts, copied at a scrape."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from kprobe_exporter.aggregate import wiring
from kprobe_exporter.aggregate.accumulator import Accumulator
from kprobe_exporter.aggregate.hist_deltas import HistDeltas
from kprobe_exporter.aggregate.numbers import Ledger, MetricNumbers, Numbers, ProbeNumbers, built_in, family
from kprobe_exporter.aggregate.recipes import Take, refuse_many
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.updates import HistogramCell, Update
from kprobe_exporter.aggregate.wiring import count
from kprobe_exporter.model.hist import HistTable
from kprobe_exporter.model.values import (
    LAYOUT_ID,
    Batch,
    CgroupOf,
    Exemplar,
    KernelCounts,
    Layout,
    ProbeMetrics,
    Record,
    Where,
)


class Aggregator:
    """Keeps every number that is exported.

    ``_lock`` guards all state. The reader's thread holds it for a batch, the poller's thread for an update, a
    scrape while it copies, and the thread that changes probes while it changes one of them. No thread
    formats, reads or waits while it holds the lock. Counters never go down. Events of a layout that is not
    attached are counted as unparsed. ``epoch`` is the number of detached layouts: kernel counts that were
    read in an earlier epoch belong to other events and are ignored.
    """

    def __init__(
        self,
        namespace: str,
        limits: SeriesLimits,
        errno_name: Callable[[int], str | None],
        cgroup: CgroupOf | None = None,
    ) -> None:
        self._namespace = namespace
        self._cgroup = cgroup
        self._limits = limits
        self._expired = limits.clock()
        self._errno_name = errno_name
        self._lock = threading.Lock()
        self.epoch = 0
        self._probes: dict[str, ProbeNumbers] = {}
        self._metrics: dict[str, MetricNumbers] = {}
        self._updates: dict[int, list[Update]] = {}
        self._takes: dict[int, list[Take]] = {}
        self._tables: dict[int, HistDeltas] = {}
        self._probe_of: dict[int, str] = {}
        self._arrived: Counter[int] = Counter()
        self._filtered_here: set[int] = set()
        self._let_through: Counter[int] = Counter()
        self._counted_here: dict[str, list[int]] = {}
        self._events_before: Counter[str] = Counter()
        self._hits_before: Counter[str] = Counter()
        self._kernel_hits: set[str] = set()
        self._kernel_misses: set[str] = set()
        self._lost: defaultdict[str, Accumulator] = defaultdict(Accumulator)
        self._lost_here: Counter[str] = Counter()
        self._decode_failures: Counter[str] = Counter()
        self._buffer_bytes = 0

    def declare(self, probe: ProbeMetrics) -> None:
        """Declare a probe's metrics, so that they exist from the start, installed or not.

        A probe that was declared before keeps its numbers, except built-in histograms whose buckets changed.
        """
        with self._lock:
            self._declare(probe)

    def redeclare(self, probes: Sequence[ProbeMetrics], anew: Collection[str] = ()) -> None:
        """Keep exactly these probes, and remove the metrics that none of them declares.

        The metrics named in ``anew`` restart at 0. No attached layout may feed them.
        """
        with self._lock:
            declared = {spec.name for probe in probes for spec in probe.metrics} - set(anew)
            for name in self._metrics.keys() - declared:
                self._metrics.pop(name).series.close()
            for name in self._probes.keys() - {probe.probe for probe in probes}:
                del self._probes[name]
                for counted in (self._events_before, self._hits_before, self._counted_here):
                    counted.pop(name, None)
                self._kernel_hits.discard(name)
                self._kernel_misses.discard(name)
            for probe in probes:
                self._declare(probe)

    def limit(self, max_series: int, max_series_total: int, ttl: float) -> None:
        """Change the limits."""
        with self._lock:
            self._limits.max_series, self._limits.max_series_total = max_series, max_series_total
            self._limits.ttl = ttl

    def attach(
        self,
        layout: Layout,
        *,
        count_hits: bool = False,
        residual_filter: Where | None = None,
        tables: Sequence[HistTable] = (),
        begins: Sequence[Layout] = (),
    ) -> None:
        """Prepare for the events of an installed probe that was declared, or for its hist ``tables``.

        ``count_hits``: the kernel does not count the hits, so each event that arrives is one. With a
        ``residual_filter``, an event that does not pass is a hit, but not an event. ``begins`` are the
        first events of a call or a pair; each of them is a hit, and only their number arrives here.
        """
        with self._lock:
            probe, refuse = self._probes[layout.probe], partial(count, self._lost_here)
            updates = wiring.updates(layout, probe, self._metrics, refuse, self._cgroup)
            if residual_filter is not None:
                updates = [wiring.filtered(layout, residual_filter, updates, self._let_through)]
                self._filtered_here.add(layout.layout_id)
            self._updates[layout.layout_id] = updates
            self._takes[layout.layout_id] = wiring.takes(probe, self._metrics)
            self._tables[layout.layout_id] = HistDeltas(layout, probe.metrics, tables)
            self._probe_of[layout.layout_id] = layout.probe
            here = [one.layout_id for one in begins or (layout,)] if count_hits else []
            if count_hits:
                self._counted_here[layout.probe] = here
            self._arrived.update(dict.fromkeys((layout.layout_id, *here), 0))

    def detach(self, layout: Layout) -> None:
        """Forget a layout, of which no more events will arrive; its probe keeps its totals.

        The next kernel counts of the probe are those of a successor and start from 0. Kernel counts that were
        read before this call are ignored: see ``epoch``.
        """
        with self._lock:
            layout_id, name = layout.layout_id, layout.probe
            here = self._counted_here.pop(name, [])
            self._hits_before[name] += sum(self._arrived[one] for one in here)
            came = self._let_through if layout_id in self._filtered_here else self._arrived
            self._events_before[name] += came[layout_id]
            for one in (layout_id, *here):
                self._arrived.pop(one, None)
            for known in (self._updates, self._takes, self._tables, self._probe_of, self._let_through):
                known.pop(layout_id, None)
            self._filtered_here.discard(layout_id)
            if name in self._probes:
                self._probes[name].hits.restart()
                self._probes[name].misses.restart()
            self.epoch += 1

    def watch(self, layout_id: int, handle: Callable[[Record], None]) -> None:
        """Call ``handle`` with each record of a layout that belongs to no probe, in stream order."""
        with self._lock:
            self._updates[layout_id] = [handle]
            self._arrived[layout_id] = 0

    def unwatch(self, layout_id: int) -> None:
        """Undo ``watch``. Records of this layout that still arrive are counted as unparsed."""
        with self._lock:
            self._updates.pop(layout_id, None)
            self._arrived.pop(layout_id, None)

    def also(self, layout_id: int, handle: Callable[[Record], None]) -> None:
        """Also call ``handle`` with each record of an attached layout, in stream order."""
        with self._lock:
            self._updates[layout_id].append(handle)

    def consume(self, batch: Batch) -> None:
        """Count a batch of events: record by record, or by the sums that the source computed."""
        arrived, updates, unparsed = self._arrived, self._updates, batch.unparsed
        with self._lock:
            self._expire()
            for record in batch.records:
                layout_id = record[LAYOUT_ID]
                try:
                    made = updates[layout_id]
                except KeyError:
                    unparsed += 1
                    continue
                arrived[layout_id] += 1
                for update in made:
                    update(record)
            for layout_id, number in batch.arrived.items():
                if layout_id in arrived:
                    arrived[layout_id] += number
                else:
                    unparsed += number
            self._let_through.update(batch.passed)
            for tally in batch.tallies:
                if takes := self._takes.get(tally.layout_id):
                    takes[tally.group](tally)
            for refused in batch.refused:
                refuse_many(refused, partial(count, self._lost_here))
            if unparsed:
                self._lost_here["unparsed"] += unparsed
            if batch.unpaired:
                self._lost_here["unpaired"] += batch.unpaired

    def lose(self, reason: str, number: int) -> None:
        """Count lost events that no other counter reports."""
        with self._lock:
            self._lost_here[reason] += number

    def exemplify(self, probe: str, exemplar: Exemplar) -> None:
        """Make an exported call the exemplar of its bucket in the probe's durations."""
        with self._lock:
            numbers = self._probes.get(probe)
            if numbers is None:  # the probe was removed meanwhile
                return
            numbers.durations.exemplify(numbers.metrics.duration_buckets, exemplar)

    def update_kernel(self, counts: KernelCounts) -> None:
        """Take the kernel's counts, unless they were read in an earlier epoch."""
        with self._lock:
            if counts.epoch != self.epoch:
                return
            for name, hits in counts.hits.items():
                self._probes[name].hits.update(hits)
                self._kernel_hits.add(name)
            for name, misses in counts.misses.items():
                self._probes[name].misses.update(misses)
                self._kernel_misses.add(name)
            for reason, lost in counts.lost.items():
                self._lost[reason].update(lost)
            self._buffer_bytes = counts.buffer_bytes
            grown = [(self._tables.get(layout_id), readings) for layout_id, readings in counts.tables.items()]
        for tables, readings in grown:
            if tables is not None:
                self.consume(tables.since(readings))

    def copy(self) -> Numbers:
        """Return a copy of all numbers at this moment."""
        with self._lock:
            self._expire()
            hits, events, lost = self._ledger()
            misses = {name: p.misses.total for name, p in self._probes.items() if name in self._kernel_misses}
            return Numbers(
                families=(
                    *built_in(self._namespace, self._probes, hits, misses, self._errno_name),
                    *(family(metric) for metric in self._metrics.values()),
                ),
                hits=hits,
                misses=misses,
                events=events,
                lost=lost,
                overflows={name: metric.series.overflowed for name, metric in self._metrics.items()},
                decode_failures=dict(self._decode_failures),
                buffer_bytes=self._buffer_bytes,
            )

    def ledger(self) -> Ledger:
        """Return the cheap part of ``copy``, without metrics and their label sets."""
        with self._lock:
            return self._ledger()

    def _ledger(self) -> Ledger:
        late = {layout_id: self._let_through[layout_id] for layout_id in self._filtered_here}
        lost = {reason: lost.total for reason, lost in self._lost.items()}
        events = self._by_probe(dict(self._arrived) | late)
        return Ledger(self._hits(), events, lost | self._lost_here)

    def hits(self) -> dict[str, int]:
        """Return how often each probe has fired so far; probes whose hits are not counted are left out."""
        with self._lock:
            return self._hits()

    def _hits(self) -> dict[str, int]:
        hits = {}
        for name, probe in self._probes.items():
            here, before = self._counted_here.get(name, []), self._hits_before[name]
            if name in self._kernel_hits or name in self._counted_here or before:
                hits[name] = probe.hits.total + before + sum(self._arrived[layout_id] for layout_id in here)
        return hits

    def _declare(self, probe: ProbeMetrics) -> None:
        returned, durations = (
            HistogramCell(len(probe.return_buckets)),
            HistogramCell(len(probe.duration_buckets)),
        )
        before = self._probes.get(probe.probe)
        if before is None:
            self._probes[probe.probe] = ProbeNumbers(
                probe, Accumulator(), Accumulator(), returned, durations, {}
            )
        else:
            if before.metrics.return_buckets == probe.return_buckets:
                returned = before.returned
            if before.metrics.duration_buckets == probe.duration_buckets:
                durations = before.durations
            self._probes[probe.probe] = before._replace(metrics=probe, returned=returned, durations=durations)
        for spec in probe.metrics:
            known = self._metrics.get(spec.name)
            if known is None:
                failed = partial(count, self._decode_failures)
                known = wiring.metric_numbers(spec, self._limits, failed)
            self._metrics[spec.name] = known._replace(spec=spec)

    def _by_probe(self, counts: Mapping[int, int]) -> dict[str, int]:
        """Sum counts by layout into counts by probe, including those of detached layouts."""
        total = {name: self._events_before[name] for name in self._probes}
        for layout_id, number in counts.items():
            if layout_id in self._probe_of:
                total[self._probe_of[layout_id]] += number
        return total

    def _expire(self) -> None:
        """Every quarter of the time to live, remove the label sets that exceeded it."""
        limits = self._limits
        if limits.ttl and limits.clock() - self._expired >= limits.ttl / 4:
            self._expired = limits.clock()
            for metric in self._metrics.values():
                metric.series.expire()
