"""Connects the records of one layout to its probe's built-in numbers and its metrics."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kprobe_exporter.aggregate.numbers import MetricNumbers, ProbeNumbers
from kprobe_exporter.aggregate.recipes import Take, counter_take, gauge_take, histogram_take, return_takes
from kprobe_exporter.aggregate.series import Series, SeriesLimits
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
from kprobe_exporter.model.values import CgroupOf, Layout, MetricSpec, Record, Where

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


def updates(
    layout: Layout,
    probe: ProbeNumbers,
    metrics: Mapping[str, MetricNumbers],
    refuse: Refuse,
    cgroup: CgroupOf | None,
) -> list[Update]:
    """Return the functions that each record goes through."""
    made = []
    for spec in probe.metrics.metrics:
        update = UPDATES[spec.kind](layout, spec, metrics[spec.name].series, refuse, cgroup)
        made.append(guarded(passes(layout, spec.where), update) if spec.where else update)
    if layout.returns is not None and layout.place("return") is not None:
        error = partial(count, probe.errors)
        made.append(
            return_update(layout, layout.returns, probe.metrics.return_buckets, probe.returned, error)
        )
    if layout.place("duration") is not None:
        made.append(duration_update(layout, probe.metrics.duration_buckets, probe.durations))
    return made


def filtered(layout: Layout, residual_filter: Where, made: list[Update], passed: Counter[int]) -> Update:
    """Return one update for the records that pass the agent's filter; ``passed`` counts them by layout_id."""

    def update(record: Record) -> None:
        passed[layout.layout_id] += 1
        for one in made:
            one(record)

    return guarded(passes(layout, residual_filter), update)


def takes(probe: ProbeNumbers, metrics: Mapping[str, MetricNumbers]) -> list[Take]:
    """Return the functions that take tallies, in the order of the recipe's groups."""
    made = [TAKES[spec.kind](spec, metrics[spec.name].series) for spec in probe.metrics.metrics]
    return made + return_takes(probe.returned, probe.errors)


def metric_numbers(
    spec: MetricSpec, limits: SeriesLimits, failed: Callable[[str, int], None]
) -> MetricNumbers:
    """Return a metric's numbers at 0; ``failed`` gets a failed decoder's name and the number of events."""
    make = partial(HistogramCell, len(spec.buckets)) if spec.kind == "histogram" else _number
    return MetricNumbers(spec, Series(spec.labels, make, limits, failed))


def _number() -> list[float]:
    """Return the cell of a counter or gauge."""
    return [0]


def count(counter: dict[Any, int], key: object, number: int = 1) -> None:
    counter[key] = counter.get(key, 0) + number
