"""Counting instead of showing: the agent's aggregation, in numbers for a table."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.recipes import recipe
from kprobe_exporter.aggregate.series import Limits
from kprobe_exporter.config.values import Probe
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import Recipe
from kprobe_exporter.model.values import Batch, Family, HistogramValue, KernelCounts
from kprobe_exporter.plan import ProbePlan
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.trace.collect import MOST, NAMESPACE, Collected

RETURNS = tuple(float(bound) for bound in (0, *(1 << power for power in range(41))))
DURATIONS = tuple((1 << power) / 1e6 for power in range(26))
"""Powers of two: of return values, and of µs in seconds."""

HISTORY = 60
"""Rates that are remembered."""


class Row(NamedTuple):
    """What is probed: events a second lately, and in all; errors by name; misses, None if unknown."""

    probe: str
    rate: float
    events: int
    errors: Mapping[str, int]
    missed: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """All that is shown at one moment.

    ``rows`` have the most frequent first; ``rates`` are the sums of the last seconds, oldest first;
    ``histogram`` is the first row's, of ``what``. ``lost`` by reason.
    """

    title: str
    seconds: float
    rows: tuple[Row, ...]
    rates: tuple[float, ...]
    histogram: HistogramValue | None
    what: str
    lost: Mapping[str, int]


def counting(probe: Probe, *, narrowed: bool, stacks: bool) -> Probe:
    """The probe as it is counted; ``narrowed`` to some threads, each of its events has to be seen."""
    made = replace(probe, return_buckets=RETURNS, duration_buckets=DURATIONS, stack=stacks)
    return replace(made, aggregate="events") if narrowed else made


@dataclass(slots=True)
class Counts:
    """The numbers of a trace. ``narrowed``: what passed the filter counts, and not each firing.

    One thread's.
    """

    title: str
    narrowed: bool
    _aggregator: Aggregator = field(
        default_factory=lambda: Aggregator(NAMESPACE, Limits(MOST, MOST), name_of), init=False
    )
    _last: Counter[str] = field(default_factory=Counter, init=False)
    _last_at: float = field(default=0, init=False)
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY), init=False)
    _shown: dict[str, str] = field(default_factory=dict, init=False)

    def recipe(self, attached: Attached, plan: ProbePlan) -> Recipe | None:
        """What the records of a probe are to be added up to."""
        return recipe(attached.layout, plan.metrics, attached.only)

    def attach(self, collected: Collected) -> None:
        """Get ready for the events of installed probes."""
        for plan, attached in zip(collected.plans, collected.attached, strict=True):
            self._shown[plan.probe.name] = attached.spec.target.partition(":")[2]
            self._aggregator.declare(plan.metrics)
            self._aggregator.attach(
                attached.layout,
                count_hits=not attached.counted_by_kernel,
                only=attached.only,
                tables=attached.tables,
                begins=attached.joined.begins if attached.joined else (),
            )

    def consume(self, batch: Batch) -> None:
        """Count a batch of events."""
        self._aggregator.consume(batch)

    def update(self, counts: KernelCounts) -> None:
        """Take what the kernel counted."""
        self._aggregator.update_kernel(counts)

    def table(self, seconds: float, *, last: bool = False) -> Table:
        """The numbers ``seconds`` after the start; with ``last`` the rates are those of all that time."""
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
            Row(
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
        return Table(self.title, seconds, tuple(rows), tuple(self._rates), histogram, what, lost)

    def _counted(self, numbers: Numbers) -> dict[str, int]:
        if self.narrowed:
            return numbers.events
        return {probe: numbers.hits.get(probe, count) for probe, count in numbers.events.items()}


def _errors(numbers: Numbers, probe: str) -> dict[str, int]:
    """Error returns of a probe by name, the most frequent first."""
    found = _family(numbers, "return_errors_total")
    samples = found.samples.items() if found else ()
    errors = {
        labels[1]: int(value)
        for labels, value in samples
        if labels[0] == probe and not isinstance(value, HistogramValue)
    }
    return dict(sorted(errors.items(), key=lambda error: (-error[1], error[0])))


def _histogram(numbers: Numbers, probe: str) -> tuple[str, HistogramValue | None]:
    """Of how long it took, or else of what it returned."""
    for name, what in (("duration_seconds", "duration"), ("return_value", "return value")):
        found = _family(numbers, name)
        value = found.samples.get((probe,)) if found else None
        if isinstance(value, HistogramValue):
            return what, value
    return "", None


def _family(numbers: Numbers, name: str) -> Family | None:
    return next((one for one in numbers.families if one.name == f"{NAMESPACE}_{name}"), None)
