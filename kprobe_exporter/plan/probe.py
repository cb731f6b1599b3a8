"""The plan of one probe: its alternatives in order, and its metrics."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.model.values import ProbeMetrics, ProbeSpec, ReturnType, Unsupported
from kprobe_exporter.plan.function import function_spec, user_spec
from kprobe_exporter.plan.joined import JoinedSpec, joined_spec
from kprobe_exporter.plan.kernel import Kernel
from kprobe_exporter.plan.metric import Decoders, fields_used, metric_spec
from kprobe_exporter.plan.tracepoint import tracepoint_specs
from kprobe_exporter.plan.typed import typed

Alternative: TypeAlias = ProbeSpec | JoinedSpec | Unsupported


class ProbePlan(NamedTuple):
    """How one probe is collected: the alternatives to try in order, and the metrics that its events feed."""

    probe: Probe
    metrics: ProbeMetrics
    alternatives: tuple[Alternative, ...]


def plan_probe(
    probe: Probe,
    namespace: str,
    decoders: Decoders,
    kernel: Kernel,
    layout_ids: Iterator[int],
    max_series: int = 1000,
) -> ProbePlan:
    """Plan one probe. ``layout_ids`` numbers layouts; ``max_series`` limits the label sets of a metric."""
    wanted = fields_used(probe)
    single = partial(_single, kernel, layout_ids, max_series)
    alternatives: list[Alternative] = []
    for attach in probe.attach:
        ways: Iterable[Alternative] = (
            single(probe, attach, wanted)
            if attach.end is None
            else [joined_spec(probe, attach, wanted, layout_ids, single)]
        )
        alternatives += (
            way if isinstance(way, Unsupported) else replace(way, help=attach.help) for way in ways
        )
    takes_time = any(attach.target.kind.is_joined for attach in probe.attach)
    durations = probe.duration_buckets if takes_time else ()
    metrics = tuple(metric_spec(metric, namespace, decoders) for metric in probe.metrics)
    return ProbePlan(
        probe,
        ProbeMetrics(probe.name, metrics, probe.return_buckets, _returns(alternatives), durations),
        tuple(alternatives),
    )


def _returns(alternatives: Iterable[Alternative]) -> ReturnType | None:
    """Return the return type of the first alternative that has one."""
    for way in alternatives:
        for spec in way.ways[-1] if isinstance(way, JoinedSpec) else (way,):
            if isinstance(spec, ProbeSpec) and spec.layout.returns is not None:
                return spec.layout.returns
    return None


def _single(
    kernel: Kernel, layout_ids: Iterator[int], max_series: int, probe: Probe, attach: Attach, wanted: set[str]
) -> list[ProbeSpec | Unsupported]:
    """Return what to try for one event, in order."""
    note = ""
    try:
        if attach.target.is_pattern or not (attach.target.kind.on_event or attach.target.kind.in_file):
            target, note = kernel.place(attach.target)
            attach = typed(probe, replace(attach, target=target), kernel.prototypes, kernel.machine)
    except (ProbeRefused, GrammarError) as error:
        return [Unsupported(str(attach.target), str(error))]
    if attach.target.kind is Kind.TRACEPOINT:
        return tracepoint_specs(probe, attach, wanted, kernel, layout_ids, max_series)
    if attach.target.kind.in_file:
        return [user_spec(probe, attach, wanted, kernel, next(layout_ids), max_series)]
    found = function_spec(probe, attach, wanted, kernel, next(layout_ids), max_series)
    if note and isinstance(found, ProbeSpec):
        found = replace(found, because=f"{found.because}; {note}")
    return [found]


def wants_symbols(probes: Iterable[Probe]) -> bool:
    """Whether any label is decoded with the kernel's symbols."""
    labels = (label for probe in probes for metric in probe.metrics for label in metric.labels)
    return any(step.name == "ksym" for label in labels for step in label.decode)


def wants_tgid(probes: Iterable[Probe]) -> bool:
    """Whether any probe needs the process id, which the kernel records only with option record-tgid."""
    return any("pid" in fields_used(probe) for probe in probes)
