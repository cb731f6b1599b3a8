"""Names of metrics and labels: the rules of `promtool check metrics`, and the names already in use."""

import re
from collections.abc import Iterator

from kprobe_exporter.config.model import BUILT_IN_METRICS, Metric, MetricKind
from kprobe_exporter.config.wording import listed

# These are the rules of client_golang's promlint, which promtool runs.
_BASE_UNITS = {
    "seconds": "minutes hours days weeks",
    "celsius": "fahrenheit rankine",
    "kelvin": "kelvins",
    "meters": "inches yards miles",
    "bytes": "bits",
    "joules": "calories",
    "grams": "pounds ounces",
    "amperes": "",
    "volts": "",
    "metres": "",
}
_BASE = {unit: base for base, others in _BASE_UNITS.items() for unit in [base, *others.split()]}
_PREFIX = re.compile(
    "pico|nano|micro|milli|centi|deci|deca|hecto|kilo|kibi|mega|mibi|giga|gibi|tera|tebi|peta|pebi"
)
_ABBREVIATIONS = frozenset("s ms us ns sec m h d b kb mb gb tb pb".split())
_KINDS = ("counter", "gauge", "summary", "histogram", "gauge_histogram")
_CAMEL_CASE = re.compile("[a-z][A-Z]")

OWN_PREFIX = "kprobe_exporter_"
_OWN_SPACES = ("kprobe_exporter", "process", "python")


def wrong_with_metric(kind: str, name: str) -> Iterator[str]:
    """Yield a sentence for each problem with a metric's configured name, which lacks the namespace."""
    full = f"_{name}"
    if kind == "counter" and not full.endswith("_total"):
        yield "a counter's name must end in _total"
    if kind != "counter" and full.endswith("_total"):
        yield f"only a counter's name may end in _total, and this is a {kind}"
    for suffix in ("_bucket", "_count", "_sum"):
        if kind != "histogram" and full.endswith(suffix):
            yield f"a name that ends in {suffix} is taken for a part of a histogram: choose another"
    yield from _wrong_with_words(full)


def wrong_with_space(namespace: str) -> Iterator[str]:
    """Yield a sentence for each problem with a namespace."""
    if namespace in _OWN_SPACES or f"{namespace}_".startswith(OWN_PREFIX):
        yield f"the exporter's own metrics begin with {listed(_OWN_SPACES)}: choose another"
    yield from _wrong_with_words(f"{namespace}_")


def wrong_with_label(name: str) -> Iterator[str]:
    """Yield a sentence for each problem with a label's name."""
    if name in ("le", "quantile") or name.startswith("__"):
        yield f"the label name {name} is reserved by Prometheus: choose another"
    if name in ("job", "instance"):
        # With honor_labels, as set for an exporter that labels by pod, it would replace the target's label.
        yield f"the label name {name} is Prometheus' own, for the target that it scrapes: choose another"
    if _CAMEL_CASE.search(name):
        yield f"write the label in snake_case, {_snake(name)}"


def _wrong_with_words(name: str) -> Iterator[str]:
    """Yield a sentence for each problem with the words; a ``_`` at an end is where the name continues."""
    if _CAMEL_CASE.search(name):
        yield f"write the name in snake_case, {_snake(name).strip('_')}"
    lower = f"{name.lower()}_" if name.startswith("_") else name.lower()
    for kind in _KINDS:
        if f"_{kind}_" in lower:
            yield f"leave the type {kind!r} out of the name"
    words = lower.split("_")
    for word in words[1:-1]:
        if word in _ABBREVIATIONS:
            reads = f"{word!r} reads as an abbreviated unit"
            yield f"{reads}: write the unit out, as seconds or bytes, or choose another word"
    for word in name.split("_"):
        unit = _PREFIX.sub("", word, count=1) if _PREFIX.match(word) else word
        if (base := _BASE.get(unit)) and base != word:
            yield f"use the base unit {base!r} instead of {word!r}"


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _series(kind: MetricKind, name: str) -> frozenset[str]:
    """Return the names that a metric takes in the exposition, including its family's in OpenMetrics."""
    if kind == "counter":
        return frozenset({name, name.removesuffix("_total")})
    if kind == "histogram":
        return frozenset({name, f"{name}_bucket", f"{name}_sum", f"{name}_count"})
    return frozenset({name})


class MetricNames:
    """The metrics already defined under one namespace, and the series names that they take."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._metrics: dict[str, tuple[Metric, str]] = {}
        self._series: dict[str, str] = {}
        for name, kind in BUILT_IN_METRICS.items():
            for one in _series(kind, name):
                self._series[one] = f"the built-in {namespace}_{name}"

    def add(self, metric: Metric, where: str) -> str | None:
        """Register the metric's names. Return None, or a sentence that says why they are unavailable.

        ``where`` is this metric's location, which later sentences quote. Probes may share a metric.
        """
        if f"{self.namespace}_{metric.name}".startswith(OWN_PREFIX):
            return f"names that begin with {OWN_PREFIX} are the exporter's own: choose another"
        if metric.name in self._metrics:
            first, there = self._metrics[metric.name]
            compared = ("kind", "help", "buckets", "native")
            differ = [what for what in compared if getattr(first, what) != getattr(metric, what)]
            if [label.name for label in first.labels] != [label.name for label in metric.labels]:
                differ.append("labels")
            if differ:
                return f"it shares its name with {there}, but differs in {' and '.join(differ)}"
            return None
        names = _series(metric.kind, metric.name)
        for name in sorted(names):
            if owner := self._series.get(name):
                return f"{self.namespace}_{name} is taken by {owner}: choose another name"
        self._metrics[metric.name] = metric, where
        self._series |= dict.fromkeys(names, f"{metric.kind} {metric.name} of {where}")
        return None
