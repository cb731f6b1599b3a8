"""What the agent must show after loads: hits, events, losses and every sample, each within bounds."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isclose, isinf
from typing import NamedTuple

from tests.kernel.differential.events import (
    MAX_ERRNO,
    Event,
    errno_name,
    hits,
    joined_calls,
    label_text,
    meets,
    pairs,
    single_events,
)
from tests.kernel.differential.load import Firing
from tests.kernel.differential.points import USER
from tests.kernel.differential.probes import RETURN_BOUNDS, Metric, Probe

Labels = frozenset[tuple[str, str]]


class Range(NamedTuple):
    """The least and the greatest value that a sample may have; ``slack`` for sums of floating point."""

    low: float = 0
    high: float = 0
    slack: float = 0

    def plus(self, low: float, high: float, slack: float = 0) -> "Range":
        return Range(self.low + low, self.high + high, self.slack + slack)

    def holds(self, value: float) -> bool:
        return self.low - self.slack <= value <= self.high + self.slack


class Choice(NamedTuple):
    """The values of which a gauge must have one, but for the last digits of its scaling."""

    values: frozenset[float]

    def holds(self, value: float) -> bool:
        return any(isclose(value, one, rel_tol=1e-12) for one in self.values)


Bounds = Range | Choice


@dataclass
class Expected:
    """Samples by the metric's name and by labels. ``whole`` are names that have no other label sets."""

    samples: dict[str, dict[Labels, Bounds]] = field(default_factory=lambda: defaultdict(dict))
    whole: set[str] = field(default_factory=set)

    def add(
        self, name: str, labels: Mapping[str, str], low: float, high: float | None = None, slack: float = 0
    ) -> None:
        """Add to a sample, which is then required."""
        of, key = self.samples[name], frozenset(labels.items())
        before = of.get(key, Range())
        assert isinstance(before, Range)
        of[key] = before.plus(low, low if high is None else high, slack)

    def set(self, name: str, labels: Mapping[str, str], values: Iterable[float]) -> None:
        self.samples[name][frozenset(labels.items())] = Choice(frozenset(values))

    def total(self, name: str) -> float:
        """The sum of all label sets of a metric whose samples are exact."""
        return sum(one.low for one in self.samples.get(name, {}).values() if isinstance(one, Range))


LOST = "kprobe_exporter_events_lost_total"
HITS, EVENTS = "kprobe_hits_total", "kprobe_exporter_events_total"

Run = tuple[Sequence[Probe], Sequence[Firing]]
"""The probes of a configuration, and the calls that the load made under it, in the order of their begin."""


def expected(runs: Sequence[Run]) -> Expected:
    """What the agent must show after these runs of one load each, with a reload in between.

    A probe that is still there continues, also if it changed or was switched off for a while; a metric
    whose definition changed starts again.
    """
    result = Expected()
    present = {probe.name: probe for probe in runs[-1][0]}
    for number, (probes, firings) in enumerate(runs):
        for probe in probes:
            now = present.get(probe.name)
            of_now = now is not None and _since(probe.name, number, runs)
            _probe(result, probe, firings if probe.enabled else (), now if of_now else None)
    _left_open(result, runs)
    return result


def _since(name: str, number: int, runs: Sequence[Run]) -> bool:
    """Whether a probe was there in each configuration from this one on."""
    return all(any(probe.name == name for probe in probes) for probes, _ in runs[number:])


def _left_open(result: Expected, runs: Sequence[Run]) -> None:
    """First halves that wait when their probe is replaced are told as unpaired."""
    waiting: dict[Probe, int] = {}
    for probes, firings in runs:
        still = {
            probe: waiting.pop(probe, 0) + pairs(probe, firings).waiting
            for probe in probes
            if probe.kind == "pair" and probe.enabled
        }
        result.add(LOST, {"reason": "unpaired"}, sum(waiting.values()))
        waiting = still


def _probe(result: Expected, probe: Probe, firings: Sequence[Firing], now: Probe | None) -> None:
    """Add what one probe shows of one load.

    ``now`` is the probe of its name in the last configuration. Without it only the losses count.
    """
    kept = now.metrics if now is not None else ()
    if probe.kind == "pair" or probe.joined:
        joining = (pairs if probe.kind == "pair" else joined_calls)(probe, firings)
        result.add(LOST, {"reason": "unpaired"}, joining.unpaired)
        found = joining.events
    else:
        found = list(single_events(probe, firings))
    events = [event for event in found if meets(probe.filter, event.values)]
    for metric in probe.metrics:
        shown = [event for event in events if meets(metric.where, event.values)]
        refused = _negative(metric, shown)
        result.add(LOST, {"reason": "negative"}, refused)
        if metric in kept:
            _metric(result, metric, shown)
    if now is None:
        return
    own = {"probe": probe.name}
    result.add(HITS, own, hits(probe, firings))
    result.add(EVENTS, own, 0 if probe.counts_only else len(events))
    if probe.has_return and now.has_return:
        _returned(result, probe, events)
    if probe.joined and now.joined:
        least, most = sum(event.least for event in events), sum(event.most for event in events)
        result.add("kprobe_duration_seconds_count", own, len(events))
        slack = 1e-9 * most / 1e9 + 1e-12
        result.add("kprobe_duration_seconds_sum", own, least / 1e9, most / 1e9, slack)


def _negative(metric: Metric, events: Iterable[Event]) -> int:
    """How many values a counter refuses."""
    if metric.kind != "counter" or not metric.value or metric.value == "duration":
        return 0
    return sum(_number(event, metric.value) < 0 for event in events)


def _returned(result: Expected, probe: Probe, events: Iterable[Event]) -> None:
    own = {"probe": probe.name}
    for event in events:
        value = _number(event, "return")
        if -MAX_ERRNO <= value < 0:
            # A program's function has no errors of the kernel, unless it is asked for them.
            shown = str(value) if probe.kind in USER else errno_name(value)
            result.add("kprobe_return_errors_total", {**own, "errno": shown}, 1)
    values = [value for event in events if (value := _number(event, "return")) >= 0]
    name = "kprobe_return_value"
    result.add(f"{name}_count", own, len(values))
    result.add(f"{name}_sum", own, sum(values), None, 1e-9 * sum(values))
    for bound in (*RETURN_BOUNDS, float("inf")):
        below = sum(value <= bound for value in values)
        result.add(f"{name}_bucket", {**own, "le": str(bound)}, below)


def _number(event: Event, name: str) -> int:
    value = event.values[name]
    assert isinstance(value, int)
    return value


def _metric(result: Expected, metric: Metric, events: Sequence[Event]) -> None:
    groups: dict[Labels, list[Event]] = defaultdict(list)
    if not metric.labels:
        groups[frozenset()] = []
    for event in events:
        refused = _negative(metric, [event])
        if not refused:
            groups[frozenset((one.name, label_text(one, event.values)) for one in metric.labels)].append(
                event
            )
    name = f"kprobe_{metric.name}"
    result.whole |= {name, f"{name}_count"}
    for key, group in groups.items():
        labels = dict(key)
        if metric.kind == "histogram":
            _histogram(result, name, metric, group, labels)
        elif metric.kind == "gauge":
            _gauge(result, name, metric, group, labels)
        elif not metric.value:
            result.add(name, labels, len(group))
        else:
            low, high, slack = _sum(metric, group)
            result.add(name, labels, low, high, slack)


def _sum(metric: Metric, group: Sequence[Event]) -> tuple[float, float, float]:
    """The least and the greatest sum of a metric's values, and the error of its floating point."""
    if metric.value == "duration":
        low, high = sum(event.least for event in group) / 1e9, sum(event.most for event in group) / 1e9
        return low, high, 1e-9 * high + 1e-12
    values = [_number(event, metric.value) for event in group]
    size = sum(map(abs, values)) * metric.scale
    exact = sum(values) * metric.scale
    return exact, exact, 1e-9 * size


def _histogram(
    result: Expected, name: str, metric: Metric, group: Sequence[Event], labels: Mapping[str, str]
) -> None:
    result.add(f"{name}_count", labels, len(group))
    low, high, slack = _sum(metric, group)
    result.add(f"{name}_sum", labels, low, high, slack)
    for bound in (*map(float, metric.buckets), float("inf")):
        if metric.value == "duration":
            surely = sum(event.most / 1e9 <= bound for event in group)
            perhaps = sum(event.least / 1e9 <= bound for event in group)
        else:
            surely = perhaps = sum(_within(event, metric, bound) for event in group)
        result.add(f"{name}_bucket", {**labels, "le": str(bound)}, surely, perhaps)


def _within(event: Event, metric: Metric, bound: float) -> bool:
    """Whether a scaled value is within a bound, both as the decimal numbers that a person writes."""
    if isinf(bound):
        return True
    return _number(event, metric.value) * Fraction(str(metric.scale)) <= Fraction(str(bound))


def _gauge(
    result: Expected, name: str, metric: Metric, group: Sequence[Event], labels: Mapping[str, str]
) -> None:
    """The last value, or one of the values of events that may have been the last."""
    last = [
        event for event in group if not any(other.begin >= event.end for other in group if other is not event)
    ]
    values = [float(_number(event, metric.value) * metric.scale) for event in last]
    if values or frozenset(labels.items()) not in result.samples[name]:
        result.set(name, labels, values or [0.0])
