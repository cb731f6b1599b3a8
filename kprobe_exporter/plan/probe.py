"""The plan of one probe: its alternatives in order, and its metrics; also narrowed to a sample of threads."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.fetch import parse_fetch
from kprobe_exporter.grammar.filter import in_kernels_words, parse_filter
from kprobe_exporter.grammar.formula_parser import inserted
from kprobe_exporter.grammar.target import Kind, Target, is_system_call
from kprobe_exporter.model.condition import Computed, Condition, parts
from kprobe_exporter.model.records import COMMON
from kprobe_exporter.model.specs import OF_EXIT, ProbeMetrics, ProbeSpec, Unsupported
from kprobe_exporter.model.values import ReturnType
from kprobe_exporter.plan.function import function_spec, user_spec
from kprobe_exporter.plan.joined import JoinedSpec, joined_spec
from kprobe_exporter.plan.kernel import Kernel, recorded, with_trigger
from kprobe_exporter.plan.kernel_pairs import kernel_joined
from kprobe_exporter.plan.metric import (
    Decoders,
    computed,
    fields_used,
    label_spec,
    metric_spec,
    residual,
    worst_spec,
)
from kprobe_exporter.plan.names import FieldWords, named, of_function, of_program
from kprobe_exporter.plan.read_members import members_note
from kprobe_exporter.plan.tracepoint import tracepoint_specs
from kprobe_exporter.plan.typed import argument_of_system_call, typed
from kprobe_exporter.plan.usdt import usdt_spec

Alternative: TypeAlias = ProbeSpec | JoinedSpec | Unsupported

NO_PAGES = "events are read as text here, which is not enough for the sums"

NO_THREAD = "common_pid < 0"  # no event passes it: only hits are counted then


class ProbePlan(NamedTuple):
    """How one probe is collected: the alternatives to try in order, and the metrics that its events feed."""

    probe: Probe
    metrics: ProbeMetrics
    alternatives: tuple[Alternative, ...]

    @property
    def waiting(self) -> bool:
        """Whether it is planned nowhere, because no container that it selects runs its program."""
        return any(isinstance(way, Unsupported) and way.waiting for way in self.alternatives)

    @property
    def refusals(self) -> str:
        """Why none of its alternatives can be tried, as clauses; "" if one can."""
        refused = [way.reason for way in self.alternatives if isinstance(way, Unsupported)]
        return "; ".join(refused) if len(refused) == len(self.alternatives) else ""

    @property
    def specs(self) -> Iterator[ProbeSpec]:
        """All events that may be installed by it."""
        for way in self.alternatives:
            singles = [one for ways in way.ways for one in ways] if isinstance(way, JoinedSpec) else [way]
            yield from (one for one in singles if isinstance(one, ProbeSpec))

    def waits(self, why: str) -> "ProbePlan":
        """Return the plan of the same metrics while there is no program to probe."""
        return self.refused(why, waiting=True)

    def refused(self, why: str, *, waiting: bool = False) -> "ProbePlan":
        """Return the plan of the same metrics without anything to try."""
        first = str(self.probe.attach[0].target)
        return self._replace(alternatives=(Unsupported(first, why, waiting),))


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
    planned = recorded(probe, counted_by_kernel=kernel.counts_tracepoints)
    if planned.stack and probe.stacks is not None and probe.stacks.weigh is not None:
        wanted |= {probe.stacks.weigh}
    single = partial(_single, kernel, layout_ids, max_series)
    alternatives: list[Alternative] = []
    facts = {label.decode[0].name for label in probe.labels if label.decode}
    for attach in probe.attach:
        if planned.user_stack and kernel.no_user_stacks is not None:
            ways: list[Alternative] = [Unsupported(str(attach.target), kernel.no_user_stacks)]
        elif OF_EXIT & facts and kernel.no_exit_codes is not None:
            ways = [Unsupported(str(attach.target), kernel.no_exit_codes)]
        elif attach.of_time and not kernel.binary:
            ways = [Unsupported(str(attach.target), f"{NO_PAGES} of the time of threads")]
        elif attach.end is None:
            found = single(planned, attach, wanted)
            ways = [with_trigger(way, planned, attach) for way in found]
        elif planned.aggregate == "kernel":
            ways = [*kernel_joined(planned, attach, wanted, layout_ids, single, kernel, max_series)]
        else:
            ways = [joined_spec(planned, attach, wanted, layout_ids, single)]
        alternatives += (
            way if isinstance(way, Unsupported) else replace(way, help=attach.help) for way in ways
        )
    takes_time = any(attach.target.is_joined for attach in probe.attach)
    durations = probe.duration_buckets if takes_time else ()
    fields = computed(probe)
    alternatives = [_with_computed(way, fields) for way in alternatives]
    lets = inserted(probe.let)
    metrics = tuple(metric_spec(metric, namespace, decoders, lets, probe.times) for metric in probe.metrics)
    returns = _returns(alternatives)
    sent = probe.export.labels if probe.export is not None else ()
    attributes = tuple(label_spec(label, decoders) for label in sent)
    fed = ProbeMetrics(
        probe.name,
        metrics,
        probe.return_buckets,
        returns,
        durations,
        probe.native,
        attributes,
        probe.outstanding,
        worst_spec(probe, decoders),
    )
    return ProbePlan(probe, fed, tuple(alternatives))


def _with_computed(way: Alternative, fields: tuple[Computed, ...]) -> Alternative:
    """Return the alternative with the fields that the agent computes; refuse it if one is of text."""
    if not fields or isinstance(way, Unsupported):
        return way
    specs = [spec for half in way.ways for spec in half] if isinstance(way, JoinedSpec) else [way]
    args = [arg for spec in specs if isinstance(spec, ProbeSpec) for arg in spec.layout.args]
    text = {arg.name for arg in args if arg.kind not in ("int", "hex") or "[" in arg.type}
    for one in fields:
        if wrong := sorted(_numbers(one.condition) & text):
            return Unsupported(way.target, f"'{wrong[0]}' is not a number, and '{one.name}' computes with it")
    if isinstance(way, JoinedSpec):
        return replace(way, computed=fields)
    return replace(way, layout=replace(way.layout, computed=fields))


def _numbers(condition: Condition) -> set[str]:
    """Return the fields that are computed with, as numbers."""
    if condition[0] == "field":
        return {condition[1]}
    return {name for part in parts(condition) for name in _numbers(part)}


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
    """Return what to try for one event, in order. A call without a return event is its entry."""
    written = attach.target
    planned = partial(_planned, kernel, layout_ids, max_series, probe)
    if written.no_return is None:
        return planned(attach, wanted)
    if written.kind.is_return:
        entry = replace(written, kind=Kind.FENTRY if written.kind is Kind.FEXIT else Kind.KPROBE)
        return [Unsupported(str(written), f"{written.no_return}: probe its entry, {entry}")]
    ways = planned(replace(attach, target=written.halves[0]), wanted)
    return [_entry_alone(way, written) for way in ways]


def _planned(
    kernel: Kernel, layout_ids: Iterator[int], max_series: int, probe: Probe, attach: Attach, wanted: set[str]
) -> list[ProbeSpec | Unsupported]:
    """Return what to try for one event, whose target is what is attached to."""
    written, note, names = attach.target, "", FieldWords()
    attach = replace(attach, filter=in_kernels_words(attach.filter) if attach.filter else None)
    try:
        if written.is_pattern or not (written.kind.on_event or written.kind.in_file):
            target, note = kernel.place(written)
            attach = replace(attach, target=target)
            if is_system_call(written, target):
                attach = _with_arguments(attach, written.symbol)
            configured = attach
            attach = typed(probe, attach, kernel.prototypes, kernel.machine, kernel.types)
            names = of_function(probe, configured, attach, kernel.prototypes, kernel.types)
            note = "; ".join(filter(None, (note, members_note(attach.fetch, attach))))
    except (ProbeRefused, GrammarError) as error:
        return [Unsupported(str(written), str(error))]
    if attach.target.kind.on_event:
        return tracepoint_specs(probe, attach, wanted, kernel, layout_ids, max_series)
    wanted = {COMMON.get(name, name) for name in wanted}  # other events have no fields of these names
    if attach.target.kind.in_file:
        in_file = usdt_spec if attach.target.kind is Kind.USDT else user_spec
        way = in_file(probe, attach, wanted, kernel, next(layout_ids), max_series)
        return [named(way, of_program(probe, attach, kernel.types))]
    found = function_spec(probe, attach, wanted, kernel, next(layout_ids), max_series)
    if isinstance(found, ProbeSpec) and note:
        found = replace(found, because=f"{found.because}; {note}", note=note)
    found = named(found, names)
    if not is_system_call(written, attach.target):
        return [found]
    # Metrics say what was written, which is the same on every architecture.
    if isinstance(found, Unsupported):
        return [Unsupported(str(written), found.reason.replace(attach.target.symbol, written.symbol))]
    layout = replace(found.layout, symbol=written.symbol)
    return [replace(found, target=str(written), symbol=written.symbol, layout=layout)]


def _entry_alone(way: ProbeSpec | Unsupported, written: Target) -> ProbeSpec | Unsupported:
    """Return the entry of a call without a return event, as that call."""
    if isinstance(way, Unsupported):
        return way._replace(target=str(written))
    name, note = written.symbol, f"only its entry is traced: {written.no_return}"
    layout, because = replace(way.layout, symbol=name), f"{way.because}; {note}"
    return replace(
        way, kind=written.kind.value, target=str(written), symbol=name, layout=layout, because=because
    )


def _with_arguments(attach: Attach, name: str) -> Attach:
    """Read the arguments of the system call ``name``. Raises GrammarError."""
    args = {key: parse_fetch(text) for key, text in attach.fetch.items()}
    if path := next((arg.expression for arg in args.values() if arg.is_path), None):
        raise GrammarError(f"{name} gets its arguments in struct pt_regs: '{path}' cannot start from one")
    fetch = {
        key: replace(arg, expression=argument_of_system_call(arg, name, attach.target.symbol)).body
        for key, arg in args.items()
    }
    return replace(attach, fetch=fetch)


def wants_symbols(probes: Iterable[Probe]) -> bool:
    """Whether any label is decoded with the kernel's symbols."""
    labels = (label for probe in probes for label in probe.labels)
    return any(step.name == "ksym" for label in labels for step in label.decode)


def wants_tgid(probes: Iterable[Probe]) -> bool:
    """Whether any probe needs the process id, which the kernel records only with option record-tgid."""
    return any({"pid", "common_tgid"} & fields_used(probe) for probe in probes)


@dataclass(frozen=True, slots=True)
class Sample:
    """The threads whose id has the remainder ``chosen`` when divided by ``one_in``, a power of two.

    It is a part of the threads, not of the events, so that both halves of a call are recorded or none. The
    remainder is drawn anew each time, so that a process cannot take a thread id that is never recorded.
    """

    one_in: int
    chosen: int

    @classmethod
    def drawn(cls, one_in: int) -> "Sample":
        return cls(one_in, random.SystemRandom().randrange(one_in))

    @property
    def condition(self) -> str:
        """The kernel's filter for it. The kernel's ``&`` is true if any bit is common
        (kernel/trace/trace_events_filter.c), so each bit is compared on its own."""
        bits = (1 << bit for bit in range(self.one_in.bit_length() - 1))
        return " && ".join(
            f"common_pid & {bit}" if self.chosen & bit else f"!(common_pid & {bit})" for bit in bits
        )

    def ratio(self, spec: ProbeSpec | JoinedSpec) -> float:
        """Return the share of the threads whose events are recorded, 0 to 1."""
        if spec.plan != "events":
            return 1.0
        return 1 / self.one_in if _in_one_thread(spec) else 0.0


def narrowed(plan: ProbePlan, sample: Sample) -> ProbePlan:
    """Return the plan with only the sample's events recorded. The kernel's own counts and sums stay whole.

    A pair whose events may come from two threads has none of its events recorded.
    """
    return plan._replace(alternatives=tuple(_narrowed(way, sample) for way in plan.alternatives))


def _narrowed(way: Alternative, sample: Sample) -> Alternative:
    if isinstance(way, Unsupported) or way.plan != "events":
        return way
    if isinstance(way, ProbeSpec):
        return _sampled(way, sample.condition)
    condition = sample.condition if _in_one_thread(way) else NO_THREAD
    ways = (
        tuple(one if isinstance(one, Unsupported) else _sampled(one, condition) for one in half)
        for half in way.ways
    )
    return replace(way, ways=tuple(ways))


def _sampled(way: ProbeSpec, condition: str) -> ProbeSpec:
    """Return the event with a further filter. A tracepoint's own event may also be read by other probes."""
    own = residual(parse_filter(condition)) if way.file is None else None
    return replace(way, sample=condition, residual_sample=own)


def _in_one_thread(spec: ProbeSpec | JoinedSpec) -> bool:
    """Whether all events of one record come from one thread."""
    return isinstance(spec, ProbeSpec) or spec.by == "stack" or "tid" in spec.key
