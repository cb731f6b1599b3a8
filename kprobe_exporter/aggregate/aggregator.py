"""All numbers of the agent: fed by events and by the kernel's counts, copied at a scrape."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter

from kprobe_exporter.aggregate.attached_layout import (
    AttachedLayout,
    ProgramNames,
    for_layout,
    named,
    selected,
)
from kprobe_exporter.aggregate.hist_deltas import HistDeltas
from kprobe_exporter.aggregate.numbers import (
    Accumulator,
    Arrivals,
    HistogramCell,
    Ledger,
    MetricNumbers,
    Numbers,
    ProbeNumbers,
    built_in,
    spreads,
)
from kprobe_exporter.aggregate.recipes import recipe
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.sums import Sums
from kprobe_exporter.aggregate.worst import WorstValues
from kprobe_exporter.model.aggregation import WORST, Refused, Tally, Where
from kprobe_exporter.model.hist import HistTable
from kprobe_exporter.model.records import LAYOUT_ID, TIME, Batch, Layout, Record
from kprobe_exporter.model.snapshot import Exemplar, KernelCounts, Spread
from kprobe_exporter.model.specs import CgroupOf, FactOf, ProbeMetrics

MOST_OWNERS = 1024
"""The most detached layouts whose probe is remembered. Their open calls are counted when they have gone."""


class Aggregator:
    """Keeps every number that is exported.

    Records become tallies before they change a number, if the source did not add them up itself. ``_lock``
    guards all state; methods that hold it call each other. The reader's thread holds it for a batch, the
    poller's thread for an update, and a scrape while it copies. The thread that changes probes holds it while
    it changes one of them. No thread formats, reads or waits while it holds the lock. Counters never go down,
    except at a ``redeclare`` that resets them.
    Events of a layout that is not attached are counted as unparsed. ``epoch`` is the number of detached
    layouts: kernel counts that were read in an earlier epoch belong to other events and are ignored.
    """

    def __init__(
        self,
        namespace: str,
        limits: SeriesLimits,
        errno_name: Callable[[int], str | None],
        cgroup: CgroupOf | None = None,
        programs: ProgramNames | None = None,
        fact: FactOf | None = None,
    ) -> None:
        self._namespace = namespace
        self._programs = programs
        self._cgroup, self._fact = cgroup, fact
        self._limits = limits
        self._errno_name = errno_name
        self._lock = threading.RLock()
        self.epoch = 0
        self._probes: dict[str, ProbeNumbers] = {}
        self._metrics: dict[str, MetricNumbers] = {}
        self._attached: dict[int, AttachedLayout] = {}
        self._handlers: dict[int, Callable[[Record], None]] = {}
        self._watched: dict[int, Callable[[Record], None]] = {}  # of attached layouts
        self._lost: defaultdict[str, Accumulator] = defaultdict(Accumulator)
        self._lost_here: Counter[str] = Counter()
        self._owners: dict[int, str] = {}  # the probes of layouts, also of those that were detached lately
        self._failures: Counter[str] = Counter()
        self._buffer_bytes = 0

    def declare(self, metrics: ProbeMetrics) -> None:
        """Declare a probe's metrics, so that they exist from the start, installed or not.

        A probe that was declared before keeps its numbers, except built-in histograms whose buckets changed.
        """
        with self._lock:
            probe = self._probes.setdefault(metrics.probe, ProbeNumbers(metrics))
            probe.metrics = metrics
            if not probe.returned.is_like(metrics.return_buckets, metrics.native):
                probe.returned = HistogramCell(metrics.return_buckets, metrics.native)
            if not probe.durations.is_like(metrics.duration_buckets, metrics.native):
                probe.durations = HistogramCell(metrics.duration_buckets, metrics.native)
            before = probe.worst
            if metrics.worst is None:
                probe.worst = None
            elif before is None or not before.is_like(metrics.worst):
                probe.worst = WorstValues(metrics.worst, self._limits.clock)
            for spec in metrics.metrics:
                if spec.name not in self._metrics:
                    self._metrics[spec.name] = MetricNumbers(spec, self._limits, self._failures)
                self._metrics[spec.name].spec = spec

    def redeclare(self, probes: Sequence[ProbeMetrics], reset: Collection[str] = ()) -> None:
        """Keep exactly these probes, and remove the metrics that none of them declares.

        The metrics named in ``reset`` restart at 0; the caller has detached the layouts that feed them.
        """
        with self._lock:
            declared = {spec.name for probe in probes for spec in probe.metrics} - set(reset)
            for name in self._metrics.keys() - declared:
                self._metrics.pop(name).series.close()
            for name in self._probes.keys() - {probe.probe for probe in probes}:
                del self._probes[name]
            for probe in probes:
                self.declare(probe)

    def limit(self, max_series: int, max_series_total: int, ttl: float | None) -> None:
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
        joined: bool = False,
    ) -> None:
        """Prepare for the events of an installed probe that was declared, or for its hist ``tables``.

        ``count_hits``: the kernel does not count the hits, so each event that arrives is one. An
        event that does not pass a ``residual_filter`` counts as a hit, but adds to no metric. ``joined``:
        the hits are the first events of calls or pairs. The source joins them and gives only their number.
        """
        with self._lock:
            probe = self._probes[layout.probe]
            takes = probe.takes()
            for number, spec in enumerate(probe.metrics.metrics):
                take = self._metrics[spec.name].take(spec)
                unreadable = partial(self.lose, "unreadable", probe=layout.probe)
                take = selected(spec, take, layout.unsigned, self._failures, unreadable)
                take = for_layout(take, spec, layout, tables)
                takes[number] = named(take, spec, self._programs, self._lock)
            if probe.worst is not None and probe.metrics.worst is not None:
                of_worst = probe.metrics.worst.as_metric
                take = for_layout(probe.worst.take(probe.metrics.worst), of_worst, layout)
                takes[WORST] = named(take, of_worst, self._programs, self._lock)
            sums = Sums(layout, recipe(layout, probe.metrics, residual_filter), self._cgroup, self._fact)
            deltas = HistDeltas(layout, probe.metrics, tables)
            here = AttachedLayout(layout.probe, sums, takes, deltas, residual_filter is not None, joined)
            self._attached[layout.layout_id] = here
            self._handlers[layout.layout_id] = sums.add
            self._owners[layout.layout_id] = layout.probe
            if len(self._owners) > MOST_OWNERS + len(self._attached):  # the oldest goes
                del self._owners[next(one for one in self._owners if one not in self._attached)]
            if joined:
                probe.lost["unpaired"] += 0  # the series is there from the start
            probe.counted_here = count_hits

    def detach(self, layout: Layout) -> None:
        """Forget a layout, of which no more events will arrive; its probe keeps its totals.

        The next kernel counts of the probe are those of a successor and start from 0. Kernel counts that were
        read before this call are ignored: see ``epoch``.
        """
        with self._lock:
            attached, probe = self._forget(layout)
            if probe is not None and attached is not None:
                probe.hits_before += attached.recorded if probe.counted_here else probe.early
                probe.counted_here, probe.early = False, 0
                probe.hits.restart()
                probe.misses.restart()

    def detach_one(self, layout: Layout, hits: int | None) -> None:
        """Forget one of several layouts of a probe, whose hits the kernel counts: the others go on.

        ``hits`` is what the kernel counted for this layout in all, None if that is unknown.
        """
        with self._lock:
            _, probe = self._forget(layout)
            if probe is not None:
                probe.hits.leave_out(hits)

    def _forget(self, layout: Layout) -> tuple[AttachedLayout | None, ProbeNumbers | None]:
        """Forget a layout and begin the next epoch; return what was attached, and its probe's numbers."""
        attached = self._attached.pop(layout.layout_id, None)
        self._handlers.pop(layout.layout_id, None)
        self._watched.pop(layout.layout_id, None)
        probe = self._probes.get(layout.probe)
        if probe is not None and attached is not None:
            probe.events_before += attached.events
            probe.outstanding.pop(layout.layout_id, None)
        self.epoch += 1
        return attached, probe

    def watch(self, layout_id: int, handle: Callable[[Record], None]) -> None:
        """Call ``handle`` with each record of a layout, in stream order. If it is attached, they also count.

        Records that the source has counted and chosen to export are among them.
        """
        with self._lock:
            add = self._handlers.get(layout_id)
            if add is None:
                self._handlers[layout_id] = handle
                return
            self._watched[layout_id] = handle

            def both(record: Record) -> None:
                add(record)
                handle(record)

            self._handlers[layout_id] = both

    def unwatch(self, layout_id: int) -> None:
        """Undo ``watch``. Records of this layout that still arrive are counted as unparsed."""
        with self._lock:
            self._handlers.pop(layout_id, None)
            self._watched.pop(layout_id, None)

    def consume(self, batch: Batch) -> None:
        """Count a batch of events, as records or as tallies."""
        with self._lock:
            self._limits.expire(metric.series for metric in self._metrics.values())
            unparsed = batch.unparsed
            handlers = self._handlers
            timed: list[tuple[int, Tally | Record]] = [*batch.by_thread]
            timed += [(emission.record[TIME], emission.record) for emission in batch.emissions]
            timed.sort(key=itemgetter(0), reverse=True)
            for record in batch.records:
                while timed and timed[-1][0] < record[TIME]:
                    self._take_timed(*timed.pop())
                handle = handlers.get(record[LAYOUT_ID])
                if handle is None:
                    unparsed += 1
                else:
                    handle(record)
            while timed:
                self._take_timed(*timed.pop())
            unparsed += self._repeat(batch)
            self._sum_up(
                {record[LAYOUT_ID] for record in batch.records}
                | {record[LAYOUT_ID] for record, _ in batch.repeated}
            )
            unparsed += self._count_added_up(batch)
            self._take(chain(batch.tallies, batch.refused))
            if unparsed:
                self._lost_here["unparsed"] += unparsed
            for layout_id, outstanding in batch.outstanding.items():
                if (here := self._attached.get(layout_id)) is not None and here.probe in self._probes:
                    self._probes[here.probe].outstanding[layout_id] = outstanding
            for reason, numbers in (("unpaired", batch.unpaired), ("table_full", batch.table_full)):
                for layout_id, number in numbers.items():
                    self.lose(reason, number, self._owners.get(layout_id))

    def _count_added_up(self, batch: Batch) -> int:
        """Count the records that the source added up or discarded; return how many have no layout here."""
        unparsed = 0
        for layout_id, number in batch.arrived.items():
            if (attached := self._attached.get(layout_id)) is not None:
                attached.count(number, batch.passed.get(layout_id, 0))
            else:
                unparsed += number
        for layout_id, number in (*batch.begun.items(), *batch.own.items()):
            if (attached := self._attached.get(layout_id)) is not None:
                attached.recorded += number
        return unparsed

    def _repeat(self, batch: Batch) -> int:
        """Take in the records that stand for several; return how many of these have no attached layout."""
        unparsed = 0
        for record, number in batch.repeated:
            if (attached := self._attached.get(record[LAYOUT_ID])) is not None:
                attached.sums.repeat(record, number)
            else:
                unparsed += number
        return unparsed

    def _sum_up(self, layout_ids: Iterable[int]) -> None:
        """Add up the records that have come of these layouts."""
        for layout_id in layout_ids:
            if (attached := self._attached.get(layout_id)) is not None:
                arrived, passed, sums = attached.sums.take()
                attached.count(arrived, passed)
                self._take(sums)

    def _take(self, sums: Iterable[Tally | Refused]) -> None:
        for one in sums:
            if isinstance(one, Tally):
                if (attached := self._attached.get(one.layout_id)) is not None:
                    attached.takes[one.feeds](one)
            else:
                for reason, number in (("negative", one.negative), ("unreadable", one.unreadable)):
                    if number:
                        self.lose(reason, number, self._owners.get(one.layout_id))

    def _take_timed(self, moment: int, one: Tally | Record) -> None:
        """Take what is about a thread that was in one cgroup, before later events tell of another one.

        It is the sum of its records, or a record that was counted and is exported.
        """
        if not isinstance(one, Tally):
            if (handle := self._watched.get(one[LAYOUT_ID])) is not None:
                handle(one)
        elif (attached := self._attached.get(one.layout_id)) is not None:
            attached.takes[one.feeds](attached.sums.looked_up(one, moment))

    def lose(self, reason: str, number: int, probe: str | None = None) -> None:
        """Count lost events that no other counter reports, of this probe if that is known."""
        with self._lock:
            self._lost_here[reason] += number
            if probe in self._probes:
                self._probes[probe].lost[reason] += number

    def exemplify(self, probe: str, exemplar: Exemplar) -> None:
        """Make an exported call the exemplar of its bucket in the probe's durations."""
        with self._lock:
            if (numbers := self._probes.get(probe)) is not None:  # else the probe was removed meanwhile
                numbers.durations.exemplify(exemplar)

    def update_kernel(self, counts: KernelCounts) -> None:
        """Take the kernel's counts, unless they were read in an earlier epoch."""
        with self._lock:
            if counts.epoch != self.epoch:
                return
            for name, hits in counts.hits.items():
                probe = self._probes[name]
                probe.hits.update(hits)
                probe.early = max(probe.early, counts.recorded.get(name, 0) - probe.hits.current)
                probe.kernel_hits = True
            for name, misses in counts.misses.items():
                self._probes[name].misses.update(misses)
                self._probes[name].kernel_misses = True
            for reason, lost in counts.lost.items():
                self._lost[reason].update(lost)
            self._buffer_bytes = counts.buffer_bytes
            attached = self._attached.copy()
        for layout_id, readings in counts.tables.items():
            if layout_id in attached:
                self.consume(attached[layout_id].deltas.since(readings, counts.pairs.get(layout_id)))

    def copy(self) -> Numbers:
        """Return a copy of all numbers at this moment."""
        with self._lock:
            self._limits.expire(metric.series for metric in self._metrics.values())
            hits, events, lost, overflows = self.ledger()
            misses = {name: p.misses.total for name, p in self._probes.items() if p.kernel_misses}
            kept = {name: p.worst.largest() for name, p in self._probes.items() if p.worst is not None}
            worst = {name: one for name, one in kept.items() if one is not None}
            return Numbers(
                families=(
                    *built_in(self._namespace, self._probes, hits, misses, self._errno_name, worst),
                    *(metric.family() for metric in self._metrics.values()),
                ),
                hits=hits,
                misses=misses,
                events=events,
                lost=lost,
                overflows=overflows,
                lost_of={
                    (name, reason): number
                    for name, probe in self._probes.items()
                    for reason, number in probe.lost.items()
                },
                decode_failures=dict(self._failures),
                buffer_bytes=self._buffer_bytes,
                worst=worst,
            )

    def ledger(self) -> Ledger:
        """Return the cheap part of ``copy``, without metrics and their label sets."""
        with self._lock:
            events = {name: probe.events_before for name, probe in self._probes.items()}
            for attached in self._attached.values():
                if attached.probe in events:
                    events[attached.probe] += attached.events
            lost = {reason: lost.total for reason, lost in self._lost.items()}
            overflows = {name: metric.series.overflowed for name, metric in self._metrics.items()}
            return Ledger(self.hits(), events, lost | self._lost_here, overflows)

    def hits(self) -> dict[str, int]:
        """Return how often each probe has fired so far; probes whose hits are not counted are omitted."""
        with self._lock:
            here = {name for name, probe in self._probes.items() if probe.counted_here}
            recorded = self.recorded(here)
            return {
                name: probe.hits.total + probe.hits_before + (recorded[name] if name in here else probe.early)
                for name, probe in self._probes.items()
                if probe.kernel_hits or probe.counted_here or probe.hits_before
            }

    def recorded(self, names: Collection[str]) -> dict[str, int]:
        """Return how many events that are hits have arrived of these probes, since they were attached."""
        recorded: Counter[str] = Counter()
        with self._lock:
            for attached in self._attached.values():
                if attached.probe in names:
                    recorded[attached.probe] += attached.recorded
        return recorded

    def counters(self, names: Collection[str]) -> dict[str, float]:
        """Return the values of those of these counters that exist, of all label sets together."""
        with self._lock:
            found = {name: self._metrics[name].series.cells for name in names if name in self._metrics}
            return {name: sum(cell[0] for cell in cells.values()) for name, cells in found.items()}

    def spreads(self) -> dict[tuple[str, str], Spread]:
        """Return the counts in the buckets of all histograms so far, by probe and the histogram's name."""
        with self._lock:
            return spreads(self._probes, self._metrics)

    def arrivals(self) -> Arrivals:
        """Return for each layout its hits by the kernel and its recorded events, which the audit compares."""
        with self._lock:
            counts = {}
            for layout_id, attached in self._attached.items():
                probe = self._probes[attached.probe]
                if probe.kernel_hits:
                    counts[layout_id] = probe.hits.current + probe.early, attached.recorded
            lost = sum(self._lost[reason].total for reason in ("overrun", "commit_overrun", "dropped"))
            here = self._lost_here["unparsed"] + self._lost_here["wiped"]
            return Arrivals(counts, lost + here, self._buffer_bytes)
