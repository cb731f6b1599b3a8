"""ProbeCounts events with the agent's aggregation, and makes the numbers of a table from them."""

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.model import Probe
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.processes import Processes
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import Batch
from kprobe_exporter.model.snapshot import HistogramValue, KernelCounts
from kprobe_exporter.trace.capture import NAMESPACE, Capture
from kprobe_exporter.trace.emit import BY

RETURNS = tuple(float(bound) for bound in (0, *(1 << power for power in range(41))))
DURATIONS = tuple((1 << power) / 1e6 for power in range(26))
"""Bucket bounds: powers of two for return values; powers of two of µs, in seconds, for durations."""

MOST_SERIES = 10_000
"""Label sets of all metrics; those beyond are counted as ``__overflow__``."""

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
    ``groups`` are the events by the labels ``by``, the most frequent first.
    """

    title: str
    seconds: float
    rows: tuple[CountRow, ...]
    rates: tuple[float, ...]
    histogram: HistogramValue | None
    what: str
    lost: Mapping[str, int]
    by: tuple[str, ...] = ()
    groups: tuple[tuple[tuple[str, ...], int], ...] = ()


def counting(probe: Probe, *, narrowed: bool) -> Probe:
    """Return the probe for counting; ``narrowed`` to some threads, it has to record every event."""
    made = replace(probe, return_buckets=RETURNS, duration_buckets=DURATIONS, stack=False)
    return replace(made, aggregate="events") if narrowed else made


class ProbeCounts:
    """The numbers of a session's probes: of each hit, or if ``narrowed``, of events that pass.

    ``shown`` maps a probe to its target. ``processes`` and ``cgroups`` know the facts that are labels. Not
    thread-safe.
    """

    def __init__(self, narrowed: bool) -> None:
        self._narrowed = narrowed
        self.processes, self.cgroups = Processes(), Cgroups()
        limits = SeriesLimits(MOST_SERIES, MOST_SERIES)
        self._aggregator = Aggregator(
            NAMESPACE, limits, name_of, cgroup=self.cgroups.path, fact=self.processes.fact
        )
        self.shown: dict[str, str] = {}
        self._recorded: set[str] = set()

    def attach(self, collected: Capture) -> None:
        """Register the installed probes, before their events come."""
        for layout_id, handle in collected.facts.hand_over().items():
            self._aggregator.watch(layout_id, handle)
        for plan, attached in zip(collected.plans, collected.attached, strict=True):
            self.shown[plan.probe.name] = attached.spec.target.partition(":")[2]
            if attached.spec.plan == "events":
                self._recorded.add(plan.probe.name)
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

    def numbers(self) -> tuple[Numbers, dict[str, int]]:
        """Return all numbers, and how many events each probe had.

        The kernel's hits include this thread's own, and calls that have not returned. So they count only
        where nothing else is recorded.
        """
        numbers = self._aggregator.copy()
        alone = set() if self._narrowed else numbers.events.keys() - self._recorded
        return numbers, numbers.events | {
            probe: numbers.hits.get(probe, numbers.events[probe]) for probe in alone
        }


class TraceCounts(ProbeCounts):
    """The numbers of a trace, for the table of ``--count``."""

    def __init__(self, title: str, narrowed: bool) -> None:
        super().__init__(narrowed)
        self._title = title
        self._last: Counter[str] = Counter()
        self._last_at = 0.0
        self._rates: deque[float] = deque(maxlen=HISTORY)

    def table(self, seconds: float, *, last: bool = False) -> CountTable:
        """Return the numbers ``seconds`` after the start; with ``last``, rates are over the whole trace."""
        numbers, counted = self.numbers()  # the histogram and the errors are those of recorded events
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
                self.shown[probe],
                rates[probe],
                counted[probe],
                _errors(numbers, probe),
                numbers.misses.get(probe),
            )
            for probe in probes
        ]
        what, histogram = _histogram(numbers, probes[0])
        lost = {reason: count for reason, count in numbers.lost.items() if count}
        rates_so_far, (by, groups) = tuple(self._rates), _groups(numbers)
        return CountTable(self._title, seconds, tuple(rows), rates_so_far, histogram, what, lost, by, groups)


def _errors(numbers: Numbers, probe: str) -> dict[str, int]:
    """Return a probe's error returns by name, the most frequent first."""
    errors = {
        labels[1]: int(value)
        for labels, value in _samples(numbers, "return_errors_total").items()
        if labels[0] == probe and not isinstance(value, HistogramValue)
    }
    return dict(sorted(errors.items(), key=lambda error: (-error[1], error[0])))


def _groups(numbers: Numbers) -> tuple[tuple[str, ...], tuple[tuple[tuple[str, ...], int], ...]]:
    """Return the labels of the metric that counts by fields, and its label sets with their numbers."""
    family = next((one for one in numbers.families if one.name == f"{NAMESPACE}_{BY}"), None)
    if family is None:
        return (), ()
    plain = {
        key: int(value) for key, value in family.samples.items() if not isinstance(value, HistogramValue)
    }
    return family.labels, tuple(sorted(plain.items(), key=lambda item: (-item[1], item[0])))


def _histogram(numbers: Numbers, probe: str) -> tuple[str, HistogramValue | None]:
    """Return the probe's histogram of durations, or else of return values, with its name."""
    for name, what in (("duration_seconds", "duration"), ("return_value", "return value")):
        value = _samples(numbers, name).get((probe,))
        if isinstance(value, HistogramValue):
            return what, value
    return "", None


def _samples(numbers: Numbers, name: str) -> Mapping[tuple[str, ...], float | HistogramValue]:
    return next((one.samples for one in numbers.families if one.name == f"{NAMESPACE}_{name}"), {})
