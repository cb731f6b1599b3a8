"""Compares a scrape with what was expected: one line for each sample that is wrong, missing or too many."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from tests.kernel.differential.expected import Bounds, Expected, Labels, Range
from tests.support.agent_process import Metrics

Samples = Mapping[str, Mapping[Labels, float]]
"""Values by the metric's name and by labels; the bounds of buckets as Python writes floats."""

OF_PROBES = ("kprobe_return_errors_total",)
"""Built-in metrics of which a probe may have no label sets but the expected ones."""


def samples(metrics: Metrics, before: Metrics | None = None) -> dict[str, dict[Labels, float]]:
    """The samples of a scrape; losses less those of the scrape ``before``."""
    found: dict[str, dict[Labels, float]] = {}
    for (name, labels), value in metrics.items():
        key = frozenset((label, str(float(text)) if label == "le" else text) for label, text in labels)
        less = (
            before.get((name, labels), 0.0) if before and name == "kprobe_exporter_events_lost_total" else 0.0
        )
        found.setdefault(name, {})[key] = value - less
    return found


def differences(expected: Expected, found: Samples) -> list[str]:
    """What differs, a sentence each."""
    return [*_wrong(expected, found), *_superfluous(expected, found), *_other_losses(expected, found)]


def _wrong(expected: Expected, found: Samples) -> Iterator[str]:
    for name, wanted in expected.samples.items():
        for labels, bounds in wanted.items():
            value = found.get(name, {}).get(labels)
            if value is None and not (isinstance(bounds, Range) and bounds.high == 0 and labels_lost(name)):
                yield f"{_sample(name, labels)} is missing, expected {_text(bounds)}"
            elif value is not None and not bounds.holds(value):
                yield f"{_sample(name, labels)} is {value:.17g}, expected {_text(bounds)}"


def labels_lost(name: str) -> bool:
    """Whether a missing sample stands for 0."""
    return name == "kprobe_exporter_events_lost_total"


def _superfluous(expected: Expected, found: Samples) -> Iterator[str]:
    for name in sorted(expected.whole):
        wanted = expected.samples.get(name, {})
        for labels, value in found.get(name, {}).items():
            if labels not in wanted:
                yield f"{_sample(name, labels)} is {value:.17g}, expected no such sample"
    probes = {dict(labels)["probe"] for labels in expected.samples.get("kprobe_hits_total", {})}
    for name in OF_PROBES:
        for labels, value in found.get(name, {}).items():
            if dict(labels)["probe"] in probes and labels not in expected.samples.get(name, {}):
                yield f"{_sample(name, labels)} is {value:.17g}, expected no such sample"


def _other_losses(expected: Expected, found: Samples) -> Iterator[str]:
    name = "kprobe_exporter_events_lost_total"
    for labels, value in found.get(name, {}).items():
        if value and labels not in expected.samples.get(name, {}):
            yield f"{_sample(name, labels)} rose by {value:g}, expected 0"


def fallen(before: Metrics | None, after: Metrics, restarted: Collection[str] = ()) -> list[str]:
    """The counters that a scrape shows lower than the one before it, but for ``restarted`` metrics."""
    return [
        f"{_sample(name, labels)} fell from {before[name, labels]:g} to {value:g}"
        for (name, labels), value in (after.items() if before else ())
        if before and name.endswith(("_total", "_count", "_bucket")) and value < before.get((name, labels), 0)
        if name not in restarted and name.removesuffix("_count").removesuffix("_bucket") not in restarted
    ]


def _sample(name: str, labels: Iterable[tuple[str, str]]) -> str:
    return name + "{" + ", ".join(f"{label}={text!r}" for label, text in sorted(labels)) + "}"


def _text(bounds: Bounds) -> str:
    if isinstance(bounds, Range):
        return f"{bounds.low:.17g}" if bounds.low == bounds.high else f"{bounds.low:.9g} to {bounds.high:.9g}"
    return "one of " + ", ".join(f"{value:.17g}" for value in sorted(bounds.values))
