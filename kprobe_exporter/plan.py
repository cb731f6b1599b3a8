"""Configuration and kernel together: how each probe could be attached, and what its events feed.

Pure: what a tracepoint looks like is handed in as a function. Installing is the next step's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kprobe_exporter.config.values import Attach, Label, Metric, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import EventFormat, parse_format, text_pattern
from kprobe_exporter.grammar.fetch import FetchArg, parse_fetch
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.model import (
    Arg,
    ArgKind,
    Decoder,
    LabelSpec,
    Layout,
    MetricSpec,
    ProbeMetrics,
    ProbeSpec,
)

Decoders = Mapping[str, Callable[[object], Decoder]]
Formats = Callable[[str, str], str | None]
"""The text of ``events/SYSTEM/EVENT/format``, None if this kernel has no such event."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """An alternative that this kernel cannot do, known before anything was tried."""

    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """How one probe is collected: what to try in order, and what its events feed."""

    probe: Probe
    metrics: ProbeMetrics
    how: str
    alternatives: tuple[ProbeSpec | Unfit, ...]


def plan_probe(
    probe: Probe, namespace: str, decoders: Decoders, formats: Formats, slots: Iterator[int]
) -> ProbePlan:
    """Work out a probe. ``slots`` numbers the layouts."""
    wanted = fields_used(probe)
    alternatives: list[ProbeSpec | Unfit] = []
    for attach in probe.attach:
        if attach.target.kind is Kind.TRACEPOINT:
            alternatives += _tracepoint(probe, attach, wanted, formats, slots)
        else:
            alternatives.append(_function(probe, attach, wanted, next(slots)))
    returns = next((a.returns for a in probe.attach if a.returns is not None), None)
    metrics = tuple(metric_spec(metric, namespace, decoders) for metric in probe.metrics)
    return ProbePlan(
        probe,
        ProbeMetrics(probe.name, metrics, probe.return_buckets, returns),
        "events",
        tuple(alternatives),
    )


def fields_used(probe: Probe) -> set[str]:
    """The fields that the probe's metrics take."""
    fields = {metric.value for metric in probe.metrics if metric.value is not None}
    return fields | {label.field for metric in probe.metrics for label in metric.labels}


def wants_tgid(probes: Iterable[Probe]) -> bool:
    """Whether any probe needs the process id, which the kernel records only when told to."""
    return any("pid" in fields_used(probe) for probe in probes)


def metric_spec(metric: Metric, namespace: str, decoders: Decoders) -> MetricSpec:
    """A metric under its full name, its decoders made."""

    def label_spec(label: Label) -> LabelSpec:
        made = tuple((step.name, decoders[step.name](step.options)) for step in label.decode)
        return LabelSpec(label.name, label.field, made)

    return MetricSpec(
        f"{namespace}_{metric.name}",
        metric.kind,
        metric.help,
        metric.value,
        tuple(map(label_spec, metric.labels)),
        metric.buckets or (),
    )


def _function(probe: Probe, attach: Attach, wanted: set[str], slot: int) -> ProbeSpec:
    """A kprobe or kretprobe: a definition in kprobe_events."""
    target = attach.target
    is_return = target.kind is Kind.KRETPROBE
    args = [parse_fetch(text, name=name) for name, text in attach.fetch.items()]
    if is_return and attach.returns is not None and attach.returns.fetch is not None:
        args.append(parse_fetch(f"$retval:{attach.returns.fetch}", name="return"))
    if "comm" in wanted | _filter_fields(attach):
        args.append(parse_fetch("$comm:string", name="comm"))
    args.sort(key=_is_string)
    module = f"{target.module}:" if target.module else ""
    offset = f"+{target.offset}" if target.offset else ""
    return ProbeSpec(
        probe=probe.name,
        kind=target.kind.value,
        target=str(target),
        symbol=target.symbol,
        file="kprobe_events",
        verb=f"r{probe.maxactive}" if is_return else "p",
        body=" ".join([f"{module}{target.symbol}{offset}", *(arg.render() for arg in args)]),
        filter=attach.filter,
        layout=Layout(
            slot,
            probe.name,
            probe.name,
            "return" if is_return else "entry",
            target.symbol,
            tuple(Arg(arg.name, _arg_kind(arg)) for arg in args),
            attach.returns,
        ),
    )


def _tracepoint(
    probe: Probe, attach: Attach, wanted: set[str], formats: Formats, slots: Iterator[int]
) -> list[ProbeSpec | Unfit]:
    """A tracepoint: an eprobe on it, which records the name too; without eprobes the tracepoint itself."""
    target = attach.target
    text = formats(target.system, target.event)
    if text is None:
        return [Unfit(str(target), f"this kernel has no tracepoint {target.system}:{target.event}")]
    try:
        form = parse_format(text)
        used = _tracepoint_fields(attach, form)
        comm = "comm" in wanted | _filter_fields(attach)
        return [
            _eprobe(probe, attach, form, used, comm, next(slots)),
            _static(probe, attach, form, used, next(slots)),
        ]
    except GrammarError as error:
        return [Unfit(str(target), error.message)]


def _tracepoint_fields(attach: Attach, form: EventFormat) -> dict[str, str]:
    """Our names to the tracepoint's fields: what is fetched, and what else the filter names."""
    used = dict(attach.fetch)
    others = _filter_fields(attach) - used.keys() - {"comm"}  # our comm, recorded with every event
    used |= {name: name for name in sorted(others) if name in form.fields}
    for name, field in used.items():
        if field not in form.fields:
            raise GrammarError(
                f"the tracepoint {form.name} has no field '{field}' (for '{name}'); it has "
                f"{', '.join(form.fields) or 'none'}"
            )
    return used


def _eprobe(
    probe: Probe,
    attach: Attach,
    form: EventFormat,
    used: dict[str, str],
    comm: bool,
    slot: int,
) -> ProbeSpec | Unfit:
    target = attach.target
    args: list[tuple[str, str, ArgKind]] = []
    for name, field in used.items():
        kind = form.fields[field].fetch_type
        if kind is None:
            return Unfit(str(target), f"its field '{field}' is an array, which this version cannot read.")
        args.append((name, f"{name}=${field}:{kind}", "str" if kind == "string" else "int"))
    if comm:
        args.append(("comm", "comm=$comm:string", "str"))
    args.sort(key=lambda arg: arg[2] == "str")
    return ProbeSpec(
        probe=probe.name,
        kind=target.kind.value,
        target=str(target),
        symbol=target.event,
        file="dynamic_events",
        verb="e",
        body=" ".join([f"{target.system}.{target.event}", *(text for _, text, _ in args)]),
        filter=attach.filter,
        layout=Layout(
            slot,
            probe.name,
            probe.name,
            "eprobe",
            target.event,
            tuple(Arg(name, kind) for name, _, kind in args),
            attach.returns,
        ),
    )


def _static(
    probe: Probe, attach: Attach, form: EventFormat, used: dict[str, str], slot: int
) -> ProbeSpec | Unfit:
    target = attach.target
    filtered = None
    if attach.filter is not None:
        filtered = parse_filter(attach.filter).rename(attach.fetch).render()
    shown = {name: field for name, field in used.items() if name in attach.fetch}
    try:
        pattern, found = text_pattern(form, set(shown.values()))
    except GrammarError as error:
        return Unfit(str(target), error.message)
    ours = {field: name for name, field in shown.items()}
    return ProbeSpec(
        probe=probe.name,
        kind=target.kind.value,
        target=str(target),
        symbol=target.event,
        file=None,
        verb="",
        body="",
        filter=filtered,
        layout=Layout(
            slot,
            probe.name,
            target.event,
            "tracepoint",
            target.event,
            tuple(arg._replace(name=ours[arg.name]) for arg in found),
            attach.returns,
            pattern,
        ),
        system=target.system,
        event=target.event,
    )


def _filter_fields(attach: Attach) -> frozenset[str]:
    return parse_filter(attach.filter).fields if attach.filter else frozenset()


def _is_string(arg: FetchArg) -> bool:
    """Strings go last: the text of what follows a string cannot be trusted to end it."""
    return arg.element_kind == "str"


def _arg_kind(arg: FetchArg) -> ArgKind:
    kind = arg.value_kind
    if kind == "array" and arg.element_kind == "str":
        return "texts"
    return kind if kind in ("int", "str") else "bare"
