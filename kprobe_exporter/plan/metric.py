"""Metrics as the aggregator takes them: under full names, with decoders and filters made."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal

from kprobe_exporter.config.values import Attach, Label, Metric, Probe
from kprobe_exporter.grammar.condition import And, Comparison, Filter, Not, Or
from kprobe_exporter.grammar.evaluate import compile_filter
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.model.aggregation import Condition
from kprobe_exporter.model.values import Decoder, LabelSpec, MetricSpec, Where

SECOND = 1e9
"""Of the unit in which records have a duration."""

Decoders = Mapping[str, Callable[[object], Decoder]]


def metric_spec(metric: Metric, namespace: str, decoders: Decoders) -> MetricSpec:
    """A metric of the configuration, ready to be fed."""

    def label_spec(label: Label) -> LabelSpec:
        made = tuple((step.name, decoders[step.name](step.options)) for step in label.decode)
        return LabelSpec(label.name, label.field, made)

    unit = SECOND if metric.value == "duration" else 1  # to divide by: 1000 * 1e-9 is no 1e-6
    return MetricSpec(
        f"{namespace}_{metric.name}",
        metric.kind,
        metric.help,
        metric.value,
        tuple(map(label_spec, metric.labels)),
        metric.buckets or (),
        metric.scale / unit,
        where(in_nanoseconds(parse_filter(metric.where, fractions=True)))
        if metric.where is not None
        else None,
    )


def where(parsed: Filter) -> Where:
    """A filter for the agent to evaluate."""
    return Where(tuple(sorted(parsed.fields)), compile_filter(parsed), condition(parsed))


def in_nanoseconds(parsed: Filter) -> Filter:
    """The same with its durations, which are in seconds, in nanoseconds, as records have them."""
    match parsed:
        case Comparison(name="duration", value=int() | float() as seconds):
            # As it is written: 1.1e-6 are 1100, which a product of floats may miss by a bit.
            return replace(parsed, value=float(Decimal(str(seconds)).scaleb(9)))
        case Not():
            return Not(in_nanoseconds(parsed.operand))
        case And() | Or():
            return replace(parsed, operands=tuple(map(in_nanoseconds, parsed.operands)))
    return parsed


def condition(parsed: Filter) -> Condition | None:
    """The filter as plain values; None if it has patterns in it."""
    if isinstance(parsed, Comparison):
        if isinstance(parsed.value, str):
            return (
                None
                if parsed.operator == "~"
                else ("text", parsed.name, parsed.operator, parsed.value.encode())
            )
        return "number", parsed.name, parsed.operator, parsed.value
    if isinstance(parsed, Not):
        operand = condition(parsed.operand)
        return None if operand is None else ("not", operand)
    assert isinstance(parsed, And | Or)
    operands = [made for made in map(condition, parsed.operands) if made is not None]
    if len(operands) < len(parsed.operands):
        return None
    return ("all" if isinstance(parsed, And) else "any"), tuple(operands)


def filter_fields(text: str | None) -> frozenset[str]:
    """The fields that a filter names."""
    return parse_filter(text, fractions=True).fields if text is not None else frozenset()


COUNTED = "nothing but hits is asked for"

EXPORTED = frozenset({"comm", "pid"})
"""What every log record and span tells of its thread, beside what each event has: its name and process."""


def events_for(probe: Probe, attach: Attach, wanted: set[str]) -> str | None:
    """What takes the events of this alternative; None where nobody wants more than how often it fires.

    A filter is such a wish: what passes it is counted by events. So is a return value to be read.
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
    """The fields that the probe's metrics and its export take."""
    used = {metric.value for metric in probe.metrics if metric.value is not None}
    used |= {label.field for metric in probe.metrics for label in metric.labels}
    for attach in probe.attach:
        if attach.end is not None:  # the agent filters, and joins by the key
            used |= filter_fields(attach.filter) | set(attach.key)
    if probe.export is not None:
        used |= EXPORTED | filter_fields(probe.export.where)
        used |= {name for attach in probe.attach for one in attach.single for name in one.fetch} - {"return"}
    return used.union(*(filter_fields(metric.where) for metric in probe.metrics))
