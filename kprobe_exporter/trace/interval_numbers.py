"""The growth of the numbers of a tool's probes in an interval: rows of a table, and histograms. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kprobe_exporter.aggregate.interpret import compile_condition
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.grammar.evaluate import as_number
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.model.snapshot import HistogramValue, LabelValues
from kprobe_exporter.tools.columns import Cell, Column

PROBE, HITS = "probe", "hits_total"
"""The label of built-in metrics, and the one of them that each probe has."""


class Growth(NamedTuple):
    """The growth of a metric: its label names, and numbers by label set in the unit of the added field."""

    labels: tuple[str, ...]
    samples: Mapping[LabelValues, int]


class Histogram(NamedTuple):
    """A histogram of one label set, with its name and its labels."""

    name: str
    labels: Mapping[str, str]
    value: HistogramValue


Row = tuple[Cell, ...]


class Interval(NamedTuple):
    """The numbers at the end of an interval, ``at`` seconds after the start, and those at its begin, if any.

    ``counted`` are the probes' events. ``scales`` are the factors of the metrics by their full names.
    ``shown`` maps the probes to their targets. ``facts`` are further numbers for a table of one row.
    """

    numbers: Numbers
    counted: Mapping[str, int]
    at: float
    before: "Interval | None"
    namespace: str
    scales: Mapping[str, float]
    shown: Mapping[str, str]
    facts: Mapping[str, int] = MappingProxyType({})

    @property
    def seconds(self) -> float:
        return self.at - (self.before.at if self.before is not None else 0.0)

    def metrics(self) -> dict[str, Growth]:
        """Return what each metric grew by; ``NAME_count`` and ``NAME_sum`` of a histogram. Gauges do not."""
        then = dict(self.before._totals()) if self.before is not None else {}
        gauges = {self._short(family.name) for family in self.numbers.families if family.type == "gauge"}
        made = {}
        for name, metric in self._totals():
            begun = then[name].samples if name in then and name not in gauges else {}
            grown = {key: value - begun.get(key, 0) for key, value in metric.samples.items()}
            made[name] = metric._replace(samples=grown)
        return made

    def _short(self, name: str) -> str:
        return name.removeprefix(f"{self.namespace}_")

    def _totals(self) -> Iterator[tuple[str, Growth]]:
        yield HITS, Growth((PROBE,), {(probe,): number for probe, number in self.counted.items()})
        for family in self.numbers.families:
            name = self._short(family.name)
            if name == HITS:
                continue
            scale = self.scales.get(family.name, 1e-9 if name == "duration_seconds" else 1.0)
            whole, counts = {}, {}
            for key, value in family.samples.items():
                if isinstance(value, HistogramValue):
                    whole[key], counts[key] = round(value.sum / scale), sum(value.counts)
                else:
                    whole[key] = round(value / scale)
            if family.type == "histogram":
                yield f"{name}_count", Growth(family.labels, counts)
            yield f"{name}_sum" if family.type == "histogram" else name, Growth(family.labels, whole)

    def histograms(self, names: Iterable[str]) -> list[Histogram]:
        """Return the histograms of these metrics that grew, each with what it grew by."""
        before = {} if self.before is None else {one.name: one for one in self.before.numbers.families}
        found = []
        wanted = {f"{self.namespace}_{name}" for name in names}
        for family in (one for one in self.numbers.families if one.name in wanted):
            for key, value in sorted(family.samples.items(), key=lambda sample: sample[0]):
                then = before[family.name].samples.get(key) if family.name in before else None
                grown = _grown(value, then)
                if grown is not None and any(grown.counts):
                    labels = dict(zip(family.labels, key, strict=True))
                    found.append(Histogram(self._short(family.name), labels, grown))
        return found


def _grown(value: float | HistogramValue, then: float | HistogramValue | None) -> HistogramValue | None:
    """Return what a histogram grew by; None for another metric."""
    if not isinstance(value, HistogramValue) or not isinstance(then, HistogramValue):
        return value if isinstance(value, HistogramValue) else None
    counts = tuple(map(int.__sub__, value.counts, then.counts))
    return HistogramValue(value.bounds, counts, value.sum - then.sum)


def is_label(column: Column, labels: Iterable[str]) -> bool:
    """Whether a column of a table shows a label."""
    return column.source in {*labels, PROBE}


def table(interval: Interval, columns: Sequence[Column]) -> list[Row]:
    """Return the rows: one for each set of the labels that columns show, or one alone without such columns.

    A formula computes with whole numbers; a metric without the label set has 0.
    """
    metrics = interval.metrics()
    known = {label for metric in metrics.values() for label in metric.labels}
    keys = [column.source for column in columns if is_label(column, known)]
    formulas = {
        column.title: parse_formula(column.source) for column in columns if not is_label(column, known)
    }
    used = {name for tree in formulas.values() for name in tree.fields}
    groups: dict[LabelValues, dict[str, int]] = {} if keys else {(): {}}
    for name in used:
        metric = metrics.get(name)
        if metric is not None and {*keys} <= {*metric.labels}:
            places = [metric.labels.index(label) for label in keys]
            for values, number in metric.samples.items():
                group = groups.setdefault(tuple(values[place] for place in places), {})
                group[name] = group.get(name, 0) + number
        elif not keys:
            groups[()][name] = interval.facts.get(name, interval_hits(metrics, name))
    compute = {title: compile_condition(as_number(tree)) for title, tree in formulas.items()}
    rows = []
    for key, numbers in groups.items():
        if keys and not any(numbers.values()):
            continue
        event = dict.fromkeys(used, 0) | numbers
        labels = dict(zip(keys, key, strict=True))
        if PROBE in labels:
            labels[PROBE] = interval.shown.get(labels[PROBE], labels[PROBE])
        rows.append(
            tuple(
                labels[column.source]
                if column.title not in compute
                else _by_second(compute[column.title](event), column, interval.seconds)
                for column in columns
            )
        )
    return rows


def interval_hits(metrics: Mapping[str, Growth], probe: str) -> int:
    """Return the events of a probe, 0 if there is none of the name."""
    return metrics[HITS].samples.get((probe,), 0)


def _by_second(value: int | None, column: Column, seconds: float) -> Cell:
    return value / max(seconds, 1e-3) if value is not None and column.per_second else value


def ordered(rows: Sequence[Row], columns: Sequence[Column], sort: str | None) -> list[Row]:
    """Return the rows with the largest of the column ``sort`` first, by default of the first number."""
    titles = [column.title for column in columns]
    numeric = [n for n in range(len(columns)) if any(isinstance(row[n], int | float) for row in rows)]
    by = titles.index(sort) if sort in titles else next(iter(numeric), None)

    def key(row: Row) -> tuple[bool, float, tuple[str, ...]]:
        value = None if by is None else row[by]
        number = float(value) if isinstance(value, int | float) else 0.0
        return not isinstance(value, int | float), -number, tuple(map(str, row))

    return sorted(rows, key=key)
