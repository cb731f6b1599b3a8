"""Counts events with the agent's aggregation, and makes the numbers of a table from them."""

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.recipes import source_recipe
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.values import Probe
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import Recipe
from kprobe_exporter.model.values import Batch, Family, HistogramValue, KernelCounts
from kprobe_exporter.plan import ProbePlan
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.trace.capture import MOST, NAMESPACE, Capture

RETURNS = tuple(float(bound) for bound in (0, *(1 << power for power in range(41))))
DURATIONS = tuple((1 << power) / 1e6 for power in range(26))
"""Bucket bounds: powers of two for return values; powers of two of µs, in seconds, for durations."""

HISTORY = 60
"""Rates that are kept for the sparkline."""


class CountRow(NamedTuple):
    """One probe: recent events per second, all events, errors by name, and misses (None if unknown)."""

    probe: str
    rate: float
    events: int
    errors: Mapping[str, int]
    missed: int | None


@dataclass(frozen=True, slots=True)
class CountTable:
    """The content of the screen at one moment.

    ``rows`` begin with the most frequent probe. ``rates`` are events per second over all probes, the
    oldest first. ``histogram`` belongs to the first row and shows ``what``. ``lost`` is by reason.
    """

    title: str
    seconds: float
    rows: tuple[CountRow, ...]
    rates: tuple[float, ...]
    histogram: HistogramValue | None
    what: str
    lost: Mapping[str, int]


def counting(probe: Probe, *, narrowed: bool, stacks: bool) -> Probe:
    """Return the probe for counting; ``narrowed`` to some threads, it has to record every event."""
    made = replace(probe, return_buckets=RETURNS, duration_buckets=DURATIONS, stack=stacks)
    return replace(made, aggregate="events") if narrowed else made


@dataclass(slots=True)
class TraceCounts:
    """The numbers of a trace: of each hit, or if ``narrowed``, of events that pass. Not thread-safe."""

    title: str
    narrowed: bool
    _aggregator: Aggregator = field(
        default_factory=lambda: Aggregator(NAMESPACE, SeriesLimits(MOST, MOST), name_of), init=False
    )
    _last: Counter[str] = field(default_factory=Counter, init=False)
    _last_at: float = field(default=0, init=False)
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY), init=False)
    _shown: dict[str, str] = field(default_factory=dict, init=False)

    def recipe(self, attached: Attached, plan: ProbePlan) -> Recipe | None:
        """Return the recipe that adds up a probe's records; None if they are needed one by one."""
        return source_recipe(attached.layout, plan.metrics, attached.residual_filter)

    def attach(self, collected: Capture) -> None:
        """Register the installed probes, before their events come."""
        for plan, attached in zip(collected.plans, collected.attached, strict=True):
            self._shown[plan.probe.name] = attached.spec.target.partition(":")[2]
            self._aggregator.declare(plan.metrics)
            self._aggregator.attach(
                attached.layout,
                count_hits=not attached.counted_by_kernel,
                residual_filter=attached.residual_filter,
                tables=attached.tables,
                joined=attached.joined is not None,
            )

    def consume(self, batch: Batch) -> None:
        """Count a batch of events."""
        self._aggregator.consume(batch)

    def update(self, counts: KernelCounts, counted_by_trigger: Collection[str]) -> None:
        """Take over the kernel's counts. No event may have been consumed since they were read."""
        recorded = self._aggregator.recorded(counted_by_trigger)
        self._aggregator.update_kernel(replace(counts, recorded=recorded))

    def table(self, seconds: float, *, last: bool = False) -> CountTable:
        """Return the numbers ``seconds`` after the start; with ``last``, rates are over the whole trace."""
        numbers = self._aggregator.copy()
        counted = self._counted(numbers)
        if last:
            self._last, self._last_at = Counter(), 0
        passed = max(seconds - self._last_at, 1e-3)
        rates = {probe: (count - self._last[probe]) / passed for probe, count in counted.items()}
        self._last, self._last_at = Counter(counted), seconds
        if not last:
            self._rates.append(sum(rates.values()))
        probes = sorted(counted, key=lambda probe: (-counted[probe], probe))
        rows = [
            CountRow(
                self._shown[probe],
                rates[probe],
                counted[probe],
                _errors(numbers, probe),
                numbers.misses.get(probe),
            )
            for probe in probes
        ]
        what, histogram = _histogram(numbers, probes[0])
        lost = {reason: count for reason, count in numbers.lost.items() if count}
        return CountTable(self.title, seconds, tuple(rows), tuple(self._rates), histogram, what, lost)

    def _counted(self, numbers: Numbers) -> dict[str, int]:
        if self.narrowed:
            return numbers.events
        return {probe: numbers.hits.get(probe, count) for probe, count in numbers.events.items()}


def _errors(numbers: Numbers, probe: str) -> dict[str, int]:
    """Return a probe's error returns by name, the most frequent first."""
    found = _family(numbers, "return_errors_total")
    samples = found.samples.items() if found else ()
    errors = {
        labels[1]: int(value)
        for labels, value in samples
        if labels[0] == probe and not isinstance(value, HistogramValue)
    }
    return dict(sorted(errors.items(), key=lambda error: (-error[1], error[0])))


def _histogram(numbers: Numbers, probe: str) -> tuple[str, HistogramValue | None]:
    """Return the probe's histogram of durations, or else of return values, with its name."""
    for name, what in (("duration_seconds", "duration"), ("return_value", "return value")):
        found = _family(numbers, name)
        value = found.samples.get((probe,)) if found else None
        if isinstance(value, HistogramValue):
            return what, value
    return "", None


def _family(numbers: Numbers, name: str) -> Family | None:
    return next((one for one in numbers.families if one.name == f"{NAMESPACE}_{name}"), None)
