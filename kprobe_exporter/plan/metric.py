"""Metrics as the aggregator takes them: with full names, ready decoders and compiled filters."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal

from kprobe_exporter.config.values import Attach, Label, Metric, Probe
from kprobe_exporter.grammar.condition import And, Comparison, Filter, Not, Or
from kprobe_exporter.grammar.evaluate import compile_filter
from kprobe_exporter.grammar.filter import DURATION, parse_filter
from kprobe_exporter.model.aggregation import Condition, Where
from kprobe_exporter.model.values import Decoder, LabelSpec, MetricSpec, decimal

SECOND = 10**9  # nanoseconds, the unit of the durations in records

Decoders = Mapping[str, Callable[[object], Decoder]]


def metric_spec(metric: Metric, namespace: str, decoders: Decoders) -> MetricSpec:
    """Return a metric of the configuration as the aggregator takes it."""

    def label_spec(label: Label) -> LabelSpec:
        made = tuple((step.name, decoders[step.name](step.options)) for step in label.decode)
        return LabelSpec(label.name, label.field, made)

    unit, only = SECOND if metric.value == DURATION else 1, metric.where
    return MetricSpec(
        f"{namespace}_{metric.name}",
        metric.kind,
        metric.help,
        metric.value,
        tuple(map(label_spec, metric.labels)),
        metric.buckets or (),
        float(decimal(metric.scale) / unit),  # the quotient of the decimals, to its last digit
        where(in_nanoseconds(parse_filter(only, fractions=True))) if only is not None else None,
    )


def where(parsed: Filter) -> Where:
    """Return the filter in the form that the agent evaluates."""
    return Where(tuple(sorted(parsed.fields)), compile_filter(parsed), condition(parsed))


def in_nanoseconds(parsed: Filter) -> Filter:
    """Return the filter with its durations converted from seconds to nanoseconds, the unit of records."""

    def converted(part: Comparison) -> Comparison:
        if part.name != DURATION or isinstance(part.value, str):
            return part
        # Decimal keeps what is written: 1.1e-6 s is 1100 ns, which a product of floats may miss by a bit.
        return replace(part, value=float(Decimal(str(part.value)).scaleb(9)))

    return parsed.change(converted)


def condition(parsed: Filter) -> Condition | None:
    """Return the filter as plain values, None if it contains string patterns."""
    if isinstance(parsed, Comparison):
        if not isinstance(parsed.value, str):
            return "number", parsed.name, parsed.operator, parsed.value
        text: Condition = ("text", parsed.name, parsed.operator, parsed.value.encode())
        return None if parsed.operator == "~" else text
    if isinstance(parsed, Not):
        operand = condition(parsed.operand)
        return None if operand is None else ("not", operand)
    assert isinstance(parsed, And | Or)
    operands = [made for made in map(condition, parsed.operands) if made is not None]
    if len(operands) < len(parsed.operands):
        return None
    return ("all" if isinstance(parsed, And) else "any"), tuple(operands)


def filter_fields(text: str | None) -> frozenset[str]:
    """Return the fields that a filter names."""
    return parse_filter(text, fractions=True).fields if text is not None else frozenset()


COUNTED = "nothing but hits is asked for"

EXPORTED = frozenset({"comm", "pid"})
"""The thread's name and process id, which log records and spans need beside what each event has."""


def events_for(probe: Probe, attach: Attach, wanted: set[str]) -> str | None:
    """Return why this alternative needs events, or None where the kernel's count of hits is enough.

    A filter needs events, because only events show what passes it. So does a return value that is read.
    """
    if probe.aggregate == "events":
        return "aggregate: events"
    if probe.metrics or probe.export is not None or wanted:
        names = [f"the metric {metric.name} takes its events" for metric in probe.metrics]
        exported = ["its events are exported"] if probe.export is not None else []
        return [*names, *exported, "a metric takes its events"][0]
    if attach.filter:
        return "its filter is counted by events"
    if probe.stack:
        return "stack: true"
    if attach.returns is not None and attach.returns.fetch is not None:
        return "its return value is read"
    return None


def fields_used(probe: Probe) -> set[str]:
    """Return the fields that the probe's metrics and its export use."""
    used = {metric.value for metric in probe.metrics if metric.value is not None}
    used |= {label.field for metric in probe.metrics for label in metric.labels}
    for attach in probe.attach:
        if attach.end is not None:  # the agent evaluates the filter and joins by the key
            used |= filter_fields(attach.filter) | set(attach.key)
    if probe.export is not None:
        used |= EXPORTED | filter_fields(probe.export.where)
        used |= {name for attach in probe.attach for one in attach.single for name in one.fetch} - {"return"}
    return used.union(*(filter_fields(metric.where) for metric in probe.metrics))
