"""The numbers of probes and metrics: how tallies change them, and how they are copied into families."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from kprobe_exporter.aggregate.native import NativeCell
from kprobe_exporter.aggregate.recipes import NANOSECONDS, whole_scale
from kprobe_exporter.aggregate.series import UNKNOWN, CellCache, Series, SeriesLimits
from kprobe_exporter.aggregate.worst import WorstValues
from kprobe_exporter.model.aggregation import DURATIONS, RETURN_ERRORS, RETURN_VALUES, Tally
from kprobe_exporter.model.snapshot import Exemplar, Family, HistogramValue, LabelValues, Spread, WorstEvent
from kprobe_exporter.model.specs import MetricSpec, ProbeMetrics

Take = Callable[[Tally], None]

HELP = {
    "hits_total": "Firings of the probe, before its filter.",
    "misses_total": "Firings that the kernel missed.",
    "return_value": "Return values of the probed function that are not errors.",
    "return_errors_total": "Error returns of the probed function, by errno.",
    "duration_seconds": "Seconds from a call's entry to its return, or between the events of a pair.",
    "outstanding": "Calls or pairs that have begun and not ended, and are as old as configured.",
    "outstanding_weight": "The sum of the configured field of these.",
    "worst_seconds": "The longest time of the probe's events within its window.",
    "worst_value": "The largest value of the probe's events within its window.",
}


class Accumulator:
    """A counter that never falls, of a kernel counter that restarts when its probe is installed again.

    ``current`` is its part since the last ``restart``. Not thread-safe: the aggregator's lock guards it.
    """

    __slots__ = ("_last", "current", "total")

    def __init__(self) -> None:
        self.total = self.current = 0
        self._last: int | None = 0

    def update(self, raw: int) -> None:
        """Take the current raw value. If it is lower than the last one, the raw counter restarted from 0."""
        if self._last is not None:
            added = raw - self._last if raw >= self._last else raw
            self.total += added
            self.current += added
        self._last = raw

    def leave_out(self, part: int | None) -> None:
        """Continue without one of the counters whose sum the raw values are; ``part`` is its last value.

        If that is unknown, what the others count until the next value is not counted.
        """
        self._last = None if part is None or self._last is None else self._last - part

    def restart(self) -> None:
        """Expect another raw counter from now on, which begins at 0."""
        self._last = self.current = 0


class HistogramCell:
    """Counts per bucket (the last is +Inf) and the sum of one label set's values.

    If ``native``, they are also counted in exponential buckets.
    """

    __slots__ = ("bounds", "counts", "created", "exemplars", "native", "sum")

    def __init__(self, bounds: tuple[float, ...], native: bool = False) -> None:
        self.bounds = bounds
        self.native = NativeCell() if native else None
        self.created = time.time()
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0
        self.exemplars: dict[int, Exemplar] = {}

    def add(self, tally: Tally, scale: float) -> None:
        """Add the bucket counts and the sum of many values, which are multiplied by ``scale``."""
        assert tally.buckets is not None
        self.counts = [*map(int.__add__, self.counts, tally.buckets)]
        self.sum += tally.sum * scale
        if self.native is not None and tally.exponential is not None:
            self.native.add(tally.exponential, tally.events)

    def exemplify(self, exemplar: Exemplar) -> None:
        """Keep the exemplar as the last one of its bucket."""
        self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def value(self) -> HistogramValue:
        native = self.native.value() if self.native is not None else None
        return HistogramValue(self.bounds, tuple(self.counts), self.sum, dict(self.exemplars), native)

    def value_with(self, worst: WorstEvent | None) -> HistogramValue:
        """Return the value with its largest observation as an exemplar.

        An exported call that took as long stays the exemplar of its bucket, because it leads to its trace.
        """
        value = self.value()
        if worst is None:
            return value
        bucket = bisect_left(self.bounds, worst.value)
        kept = value.exemplars.get(bucket)
        if kept is not None and kept.value >= worst.value:
            return value
        return value._replace(exemplars={**value.exemplars, bucket: worst.exemplar})

    def is_like(self, bounds: tuple[float, ...], native: bool) -> bool:
        """Return whether the histogram has these bounds, and exponential buckets as wanted."""
        return self.bounds == bounds and (self.native is not None) == native


class MetricNumbers:
    """One configured metric, which several probes may share; ``spec`` is the latest declaration of it.

    ``failures`` counts events by the decoder that failed.
    """

    def __init__(self, spec: MetricSpec, limits: SeriesLimits, failures: Counter[str]) -> None:
        self.spec = spec
        self.series: Series[Any] = Series(
            spec.labels, partial(_cell, spec), limits, failures, self._keep_counts
        )
        self._expired = [0] * (len(spec.buckets) + 1)

    def take(self, spec: MetricSpec) -> Take:
        """Return the function that takes tallies of a probe that declared the metric by this ``spec``."""
        cell_of = CellCache(self.series, spec.labels)
        scale, counts = whole_scale(spec.scale), spec.value is None

        def add(tally: Tally) -> None:
            cell = cell_of(tally.key, tally.events)
            cell[0] += tally.events if counts else tally.sum * scale

        def keep(tally: Tally) -> None:
            # The tallies of one CPU may come after those of another, and be earlier.
            cell = cell_of(tally.key, tally.events)
            if tally.time >= cell[1]:
                cell[:] = tally.sum * scale, tally.time

        def spread(tally: Tally) -> None:
            cell_of(tally.key, tally.events).add(tally, scale)

        return {"counter": add, "gauge": keep, "histogram": spread}[spec.kind]

    def _keep_counts(self, cell: HistogramCell | list[float]) -> None:
        if isinstance(cell, HistogramCell):
            self._expired = [*map(int.__add__, self._expired, cell.counts)]

    def spread(self) -> Spread:
        """Return the counts of a histogram's label sets together, with those that have expired."""
        cells = (cell.counts for cell in self.series.cells.values())
        return Spread(self.spec.buckets, tuple(map(sum, zip(self._expired, *cells, strict=True))))

    def family(self) -> Family:
        """Return the metric with a copy of all its label sets."""
        spec, cells = self.spec, self.series.cells
        labels = tuple(label.name for label in spec.labels)
        if spec.kind == "histogram":
            histograms = {key: cell.value() for key, cell in cells.items()}
            created = {key: cell.created for key, cell in cells.items()}
            return Family(spec.name, spec.kind, spec.help, labels, histograms, created)
        created = {key: cell[1] for key, cell in cells.items()} if spec.kind == "counter" else {}
        samples = {key: cell[0] for key, cell in cells.items()}
        return Family(spec.name, spec.kind, spec.help, labels, samples, created)


def _cell(spec: MetricSpec) -> HistogramCell | list[float]:
    """Return a new cell: a counter's value and the time since which it is counted, or a gauge's and its time
    in nanoseconds."""
    if spec.kind == "histogram":
        return HistogramCell(spec.buckets, spec.native)
    return [0, time.time()] if spec.kind == "counter" else [0, 0]


@dataclass(slots=True)
class ProbeNumbers:
    """The numbers that every probe has without any configuration.

    ``hits`` and ``misses`` are the kernel's; ``kernel_hits`` and ``kernel_misses`` say whether it counts
    them. ``counted_here``: the agent counts its events as hits. ``early`` are events that were recorded while
    the kernel did not count hits yet, or no longer (see `hist_tables.HitCounter`). ``hits_before`` and
    ``events_before`` are those of layouts that are detached by now. ``lost`` are losses by reason, where the
    probe is known. ``outstanding`` are what has not ended of it, and its weight, by layout_id. ``worst`` are
    its largest values.
    ``created`` is the Unix time since which all are counted, if no histogram was replaced.
    """

    metrics: ProbeMetrics
    returned: HistogramCell = field(default_factory=lambda: HistogramCell(()))
    durations: HistogramCell = field(default_factory=lambda: HistogramCell(()))
    errors: Counter[int] = field(default_factory=Counter)
    hits: Accumulator = field(default_factory=Accumulator)
    misses: Accumulator = field(default_factory=Accumulator)
    kernel_hits: bool = False
    kernel_misses: bool = False
    counted_here: bool = False
    early: int = 0
    hits_before: int = 0
    events_before: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    outstanding: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    worst: WorstValues | None = None
    created: float = field(default_factory=time.time)

    def takes(self) -> dict[int, Take]:
        """Return the functions with which the built-in metrics take tallies."""

        def count(tally: Tally) -> None:
            (number,) = tally.key
            assert isinstance(number, int)
            self.errors[-number] += tally.events

        return {
            RETURN_ERRORS: count,
            RETURN_VALUES: partial(HistogramCell.add, self.returned, scale=1),
            DURATIONS: partial(HistogramCell.add, self.durations, scale=NANOSECONDS),
        }


class Ledger(NamedTuple):
    """Hits and delivered events by probe, lost events by reason, overflowed events by metric."""

    hits: dict[str, int]
    events: dict[str, int]
    lost: dict[str, int]
    overflows: dict[str, int]


class Arrivals(NamedTuple):
    """Hits and recorded events since each layout was attached, by layout_id, where the kernel counts hits.

    ``lost`` are the losses so far for which the probe is unknown, ``waiting`` the bytes in the ring buffers.
    """

    counts: dict[int, tuple[int, int]]
    lost: int
    waiting: int


class Numbers(NamedTuple):
    """A copy of all numbers at one moment; ``hits`` and ``misses`` lack the probes without such a count.

    ``lost`` is by reason, ``lost_of`` by probe and reason, as far as the probe is known. ``worst`` are the
    largest values of the probes that have one.
    """

    families: tuple[Family, ...]
    hits: dict[str, int]
    misses: dict[str, int]
    events: dict[str, int]
    lost: dict[str, int]
    overflows: dict[str, int]
    decode_failures: dict[str, int]
    buffer_bytes: int
    lost_of: Mapping[LabelValues, float] = {}
    worst: Mapping[str, WorstEvent] = {}


def spreads(
    probes: Mapping[str, ProbeNumbers], metrics: Mapping[str, MetricNumbers]
) -> dict[tuple[str, str], Spread]:
    """Return the histograms that probes have, by probe and the histogram's name, the built-in ones first.

    A metric that several probes share is the same for each.
    """
    found = {}
    for name, probe in probes.items():
        for kind, cell in (("duration_seconds", probe.durations), ("return_value", probe.returned)):
            if cell.bounds:
                found[name, kind] = Spread(cell.bounds, tuple(cell.counts))
        for spec in probe.metrics.metrics:
            if spec.buckets:
                found[name, spec.name] = metrics[spec.name].spread()
    return found


def built_in(
    namespace: str,
    probes: Mapping[str, ProbeNumbers],
    hits: Mapping[str, int],
    misses: Mapping[str, int],
    errno_name: Callable[[int], str | None],
    worst: Mapping[str, WorstEvent],
) -> Iterator[Family]:
    """Yield the metrics that every probe has without any configuration."""

    def made(name: str, samples: Mapping[LabelValues, float | HistogramValue], *labels: str) -> Family:
        kind: Literal["counter", "gauge", "histogram"] = "counter" if name.endswith("_total") else "histogram"
        if name.startswith(("outstanding", "worst")):
            return Family(f"{namespace}_{name}", "gauge", HELP[name], ("probe", *labels), samples)
        created = {key: probes[key[0]].created for key in samples if key[0] in probes}
        return Family(f"{namespace}_{name}", kind, HELP[name], ("probe", *labels), samples, created)

    yield made("hits_total", {(name,): number for name, number in hits.items()})
    yield made("misses_total", {(name,): number for name, number in misses.items()})
    returned: dict[LabelValues, HistogramValue] = {}
    errors: Counter[LabelValues] = Counter()
    for name, probe in probes.items():
        returns = probe.metrics.returns
        if returns is None or returns.fetch is None:
            continue
        if probe.returned.bounds and not returns.pointer:
            returned[name,] = probe.returned.value_with(_worst_of("return", probe, worst))
        for number, count in probe.errors.items():
            shown = errno_name(number) or UNKNOWN if returns.errno else str(-number)
            errors[name, shown] += count
    yield made("return_value", returned)
    yield made("return_errors_total", errors, "errno")
    durations: dict[LabelValues, HistogramValue] = {
        (name,): probe.durations.value_with(_worst_of("duration", probe, worst))
        for name, probe in probes.items()
        if probe.durations.bounds
    }
    if durations:
        yield made("duration_seconds", durations)
    numbers: Counter[LabelValues] = Counter()
    weights: Counter[LabelValues] = Counter()
    for name, probe in probes.items():
        if (asked := probe.metrics.outstanding) is None:
            continue
        counted = probe.outstanding.values()
        numbers[name,] = sum(number for number, _ in counted)
        if asked.weigh is not None:
            weights[name,] = sum(weight or 0 for _, weight in counted)
    if numbers:
        yield made("outstanding", numbers)
    if weights:
        yield made("outstanding_weight", weights)
    for family, is_time in (("worst_seconds", True), ("worst_value", False)):
        wanted = [
            (name, probe.metrics.worst)
            for name, probe in probes.items()
            if probe.metrics.worst is not None and probe.metrics.worst.is_time is is_time
        ]
        if wanted:
            largest: dict[LabelValues, float] = {}
            largest |= {(name, spec.value): worst[name].value for name, spec in wanted if name in worst}
            yield made(family, largest, "by")


def _worst_of(value: str, probe: ProbeNumbers, worst: Mapping[str, WorstEvent]) -> WorstEvent | None:
    """Return a probe's largest value if it is one of its built-in histogram of ``value``."""
    spec = probe.metrics.worst
    return worst.get(probe.metrics.probe) if spec is not None and spec.value == value else None
