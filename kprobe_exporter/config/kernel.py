"""Checks for `aggregate: kernel`: hist triggers aggregate only by numbers, and in powers of two."""

import math
from collections.abc import Iterator

from kprobe_exporter.config.metrics import return_buckets
from kprobe_exporter.config.schema import MetricModel, ProbeModel
from kprobe_exporter.config.sites import Alternative, Report
from kprobe_exporter.config.values import Metric
from kprobe_exporter.config.wording import Path, listed, quote
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.values import OF_THREAD

MOST_LABELS = 2
"""TRACING_MAP_KEYS_MAX of kernel/trace/tracing_map.h is 3 keys, and a histogram's value is one of them."""

NOT_KEYS = frozenset({"pid", "caller", "symbol"})
"""Fields that the agent determines for each event, so that hist triggers do not have them."""

WORDS = frozenset({"hitcount", "raw", "stacktrace", "STACKTRACE", "cpu", "CPU"})
"""Names with a meaning of their own in a hist trigger (kernel/trace/trace_events_hist.c)."""

EVENTS = "leave `aggregate` out to have it"


def refuse_probe(probe: ProbeModel, alternatives: tuple[Alternative, ...], report: Report) -> None:
    """Refuse the settings of a probe, except for its metrics, that hist triggers do not support."""
    if joined := [str(one.attach.target) for one in alternatives if one.attach.target.kind.is_joined]:
        report(("aggregate",), f"{listed(joined)} is two events, which the agent joins: {EVENTS}")
    if probe.stack:
        report(("stack",), f"the kernel keeps no stacks where it aggregates: {EVENTS}")
    measured = any(one.attach.returns and one.attach.returns.fetch for one in alternatives)
    if measured and (wrong := list(_no_powers(return_buckets(probe), 1.0))):
        report(("return_buckets",), _not_a_power(wrong))


def refuse_metric(
    model: MetricModel, metric: Metric, alternatives: tuple[Alternative, ...], report: Report
) -> None:
    """Refuse the settings of a metric that hist triggers do not support, by paths within the metric."""
    if metric.kind == "gauge":
        report(("gauge",), f"the kernel keeps no last value where it aggregates: {EVENTS}")
    if metric.value is not None and (why := _no_value(metric.value, alternatives)):
        report(("value",), why)
    if metric.kind == "histogram" and (wrong := list(_no_powers(metric.buckets or (), metric.scale))):
        report(("buckets",), _not_a_power(wrong))
    if len(metric.labels) > MOST_LABELS:
        report(("labels",), f"the kernel aggregates by {MOST_LABELS} labels at most: {EVENTS}")
    for path, field in _label_fields(model):
        if why := _no_key(field, alternatives):
            report(path, why)
    for label in metric.labels:
        if label.decode and label.decode[0].name in OF_THREAD:
            report(("labels",), f"the kernel does not aggregate by {label.decode[0].name}: {EVENTS}")
    _refuse_where(model, alternatives, report)


def _label_fields(model: MetricModel) -> Iterator[tuple[Path, str]]:
    if isinstance(model.labels, list):
        for index, name in enumerate(model.labels):
            yield ("labels", index), name
        return
    for name, label in model.labels.items():
        if isinstance(label, str):
            yield ("labels", name), label
        else:
            yield ("labels", name, "field"), label.field


def _no_value(field: str, alternatives: tuple[Alternative, ...]) -> str | None:
    """Return why hist triggers cannot sum a field."""
    if field in ("cpu", "tid"):
        return f"the kernel adds up what an event carries, which {quote(field)} is not: {EVENTS}"
    return None if field == "comm" else _no_key(field, alternatives)  # write_out refuses it as text


def _no_key(field: str, alternatives: tuple[Alternative, ...]) -> str | None:
    """Return why hist triggers cannot use a field as a key, as far as this is known without the kernel."""
    if field == "comm":
        return None
    if field in NOT_KEYS:
        return f"the kernel does not aggregate by {quote(field)}, which the agent finds out: {EVENTS}"
    if field in WORDS - {"cpu"}:
        return f"{quote(field)} is a word of the kernel's hist triggers: fetch it under another name"
    for one in alternatives:
        known = one.fields.get(field)
        if known is not None and known.kind not in ("int", "cpu"):
            return f"the kernel aggregates by numbers and `comm`, {quote(field)} is neither: {EVENTS}"
    return None


def _refuse_where(model: MetricModel, alternatives: tuple[Alternative, ...], report: Report) -> None:
    """Refuse conditions that the trigger, which evaluates them on the kernel's event, does not support."""
    if model.where is None:
        return
    returned = [one.attach.returns for one in alternatives if one.attach.returns]
    guessed = any(returns.wide or returns.pointer for returns in returned)
    for part in parse_filter(model.where, fractions=True).comparisons:
        if part.name in NOT_KEYS:
            why = f"the kernel does not know {quote(part.name)} where it aggregates: {EVENTS}"
        elif isinstance(part.value, float):
            why = f"the kernel compares no fractions where it aggregates: {EVENTS}"
        elif part.name == "return" and guessed:
            why = "the kernel compares the whole register: say that it `returns` int, ssize_t or the like"
        else:
            continue
        report(("where",), why, column=part.column)


def _no_powers(bounds: tuple[float, ...], scale: float) -> Iterator[float]:
    """Yield the bounds above 0 that, divided by ``scale``, are not 1, 2, 4 or a further power of two.

    Bounds up to 0 are exact, because each value up to 0 is counted separately.
    """
    for bound in bounds:
        if bound > 0:
            raw = bound / scale
            nearest = 2.0 ** max(0, round(math.log2(raw)))
            if not math.isclose(raw, nearest, rel_tol=1e-9):
                yield bound


def _not_a_power(wrong: list[float]) -> str:
    several = "are no powers" if len(wrong) > 1 else "is no power"
    shown = listed([f"{bound:g}" for bound in wrong[:3]]).replace(" or ", " and ")
    more = " and others" if len(wrong) > 3 else ""
    return f"the kernel's buckets are powers of 2 of the value: {shown}{more} {several} of 2"
