"""Metrics as the aggregator takes them: with full names, ready decoders and compiled filters."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from kprobe_exporter.config.model import NAMED, Attach, Decode, Export, Label, Metric, Probe
from kprobe_exporter.grammar.evaluate import as_condition, as_number, in_nanoseconds
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import DURATION, Node, insert
from kprobe_exporter.grammar.formula_parser import inserted, parse_formula
from kprobe_exporter.grammar.lexis import NAME
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.condition import Computed
from kprobe_exporter.model.records import CALLER_ADDRESS, COMMON_COMM
from kprobe_exporter.model.specs import OF_PROGRAM, Decoder, LabelSpec, MetricSpec, WorstSpec
from kprobe_exporter.model.values import decimal

SECOND = 10**9  # nanoseconds, the unit of the durations in records

OF_TIME = (DURATION,)
"""The fields that are times, unless there are events between those of a pair."""

NETWORK_ORDER = (Decode("ip"), Decode("port"))
"""Decoders that take a number as memory has it, in network byte order."""

Decoders = Mapping[str, Callable[[object], Decoder]]


def metric_spec(
    metric: Metric,
    namespace: str,
    decoders: Decoders,
    lets: Mapping[str, Node] | None = None,
    times: Collection[str] = OF_TIME,
) -> MetricSpec:
    """Return a metric of the configuration as the aggregator takes it.

    ``lets`` are the probe's, and ``times`` those of its fields that are times.
    """
    unit = SECOND if metric.value in times else 1
    # A label may have the name of a field that is computed.
    trees = {name: tree for name, tree in (lets or {}).items() if name not in metric.selecting}
    by_fields, by_labels = (
        where(insert(part, trees), times) if part else None for part in metric.where_parts
    )
    return MetricSpec(
        f"{namespace}_{metric.name}",
        metric.kind,
        metric.help,
        metric.value,
        tuple(label_spec(label, decoders) for label in metric.labels),
        metric.buckets or (),
        float(decimal(metric.scale) / unit),  # the quotient of the decimals, to its last digit
        by_fields,
        by_labels,
        tuple(name for name in by_labels.fields if name not in metric.selecting) if by_labels else (),
        metric.native,
    )


def worst_spec(probe: Probe, decoders: Decoders) -> WorstSpec | None:
    """Return which largest value of a probe the aggregator keeps, None for none."""
    if (worst := probe.worst) is None:
        return None
    is_time = worst.by in probe.times
    labels = tuple(label_spec(label, decoders) for label in worst.labels)
    return WorstSpec(worst.by, labels, 1 / SECOND if is_time else 1.0, worst.window, is_time)


def label_spec(label: Label, decoders: Decoders) -> LabelSpec:
    """Return a label of a metric or of the export with its decoders ready."""
    made = tuple((step.name, decoders[step.name](step.options)) for step in label.decode)
    first = label.decode[0] if label.decode else None
    in_program = label.field == "caller" and first is not None and first.name == OF_PROGRAM
    field = CALLER_ADDRESS if in_program else label.field
    return LabelSpec(label.name, field, made, first in NETWORK_ORDER, first == NAMED)


def computed(probe: Probe) -> tuple[Computed, ...]:
    """Return the fields that the agent computes: each `let`, and each expression that is a metric's value."""
    trees = {**inserted(probe.let)}
    for metric in probe.metrics:
        if metric.value is not None and not NAME.fullmatch(metric.value):
            trees[metric.value] = insert(parse_formula(metric.value), trees)
    return tuple(
        Computed(name, tuple(sorted(tree.fields)), as_number(_in_records(tree, probe.times)))
        for name, tree in trees.items()
    )


def where(tree: Node, times: Collection[str] = OF_TIME) -> Where:
    """Return an expression, which compares ``times`` with seconds, in the form that the agent evaluates."""
    return residual(_in_records(tree, times))


def export_condition(export: Export | None, times: Collection[str]) -> Where | None:
    """Return the condition of an export in the form that the agent evaluates; None without one."""
    if export is None or export.where is None:
        return None
    return where(parse_formula(export.where), times)


def _in_records(tree: Node, times: Collection[str]) -> Node:
    return tree.change(partial(in_nanoseconds, times=times))


def residual(parsed: Node) -> Where:
    """Return a filter that the kernel does not evaluate, in the form that the agent does."""
    return Where(tuple(sorted(parsed.fields)), as_condition(parsed))


def filter_fields(text: str | None) -> frozenset[str]:
    """Return the fields that a filter names."""
    return parse_filter(text, fractions=True).fields if text is not None else frozenset()


def where_fields(text: str | None) -> frozenset[str]:
    """Return the fields that a condition of the agent's names."""
    return parse_formula(text).fields if text is not None else frozenset()


COUNTED = "nothing but hits is asked for"

NO_HIST = "this kernel has no hist triggers (CONFIG_HIST_TRIGGERS), so the agent adds up the events"
"""Debian's 5.10 is built without them: no event has a file ``hist`` there."""

STACKS_COUNTED_HERE = "the agent counts its stacks"

EXPORTED = frozenset({COMMON_COMM, "common_tgid"})
"""The thread's name and process id, which log records and spans need beside what each event has."""


def events_for(probe: Probe, attach: Attach, wanted: set[str]) -> str | None:
    """Return why this alternative needs events, or None where the kernel's count of hits is enough.

    A filter needs events, because only events show what passes it. So does a return value that is read. For
    ``aggregate: kernel``, this is called only where there are no hist triggers.
    """
    if probe.aggregate != "auto":
        return "aggregate: events" if probe.aggregate == "events" else NO_HIST
    each = probe.stack or probe.user_stack
    stacks = [STACKS_COUNTED_HERE] if each and probe.stacks is not None else []
    if probe.metrics or probe.export is not None or probe.worst is not None or wanted:
        names = [f"the metric {metric.name} takes its events" for metric in probe.metrics]
        names += ["its largest value is kept"] if probe.worst is not None else []
        exported = ["its events are exported"] if probe.export is not None else []
        return [*names, *exported, *stacks, "a metric takes its events"][0]
    if attach.filter:
        return "its filter is counted by events"
    if each:
        return [*stacks, "stack: true"][0]
    if attach.returns is not None and attach.returns.fetch is not None:
        return "its return value is read"
    return None


def fields_used(probe: Probe) -> set[str]:
    """Return the fields that the probe's metrics and its export use."""
    used = {metric.value for metric in probe.metrics if metric.value is not None}
    used |= {label.field for label in probe.labels}
    if probe.worst is not None:
        used.add(probe.worst.by)
    if probe.outstanding is not None and probe.outstanding.weigh is not None:
        used.add(probe.outstanding.weigh)
    if any(label.decode and label.decode[0].name == OF_PROGRAM for label in probe.labels):
        used.add("common_tgid")
    used = used.union(*(where_fields(metric.where) - metric.selecting for metric in probe.metrics))
    if probe.export is not None:
        used |= where_fields(probe.export.where)
    fields = {one.name: one.fields for one in computed(probe)}
    used = {name for one in used for name in fields.get(one, (one,))}
    for attach in probe.attach:
        if attach.end is not None:  # the agent evaluates the filter and joins by the key
            used |= filter_fields(attach.filter) | set(attach.key)
        if attach.of_time:
            used = used.union(*(one.fetch for one in attach.single))
    if probe.export is not None:
        used |= EXPORTED
        used |= {name for attach in probe.attach for one in attach.single for name in one.fetch} - {"return"}
    return used
