"""Predicts how `run` would attach each probe on this kernel, by reading alone: it changes nothing."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kprobe_exporter.config.values import Config, Probe
from kprobe_exporter.errors import ProbeRefused, one_line
from kprobe_exporter.grammar.target import Target, parse_target
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.values import ProbeSpec, ShownState, Unsupported, summary
from kprobe_exporter.plan import JoinedSpec, Kernel, ProbePlan, cannot_share, plan_probe
from kprobe_exporter.probing.event_source import choose
from kprobe_exporter.probing.kernel_info import expanded, known_kernel
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.functions import Answer, Functions
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.symbols.resolve import Resolver, event_names
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import not_built


@dataclass(frozen=True, slots=True)
class DryRunRow:
    """How one probe would be attached. ``plan`` is empty for one that would not be."""

    probe: str
    state: ShownState
    kind: str
    target: str
    plan: str
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the kernel by reading: facts for planning, and its expected answers to definitions."""

    kernel: Kernel
    has: Callable[[str], bool]
    function: Callable[[Target], Answer]
    eprobes: Answer


def verdict(rows: Iterable[DryRunRow]) -> str:
    """Return in one line how many probes would be up, and which would not."""
    return summary(((one_line(row.probe), row.state) for row in rows), "would be up")


def look(config: Config, tracefs: Path, root: Path = Path("/")) -> list[DryRunRow]:
    """Resolve a configuration against this kernel. Raises OSError, and TracefsError if no agent could start.

    ``choose`` decides between pages and text, as it does for the agent.
    """
    files, most = ReadOnlyTracefs(tracefs), config.settings.max_matches
    lists = Lists.of(tracefs, root)
    resolver = Resolver(lists, lambda system: event_names(files, system))
    with Instance.top(files) as instance:
        probes = expanded(config.probes, resolver, most)
        stacks_wanted = any(probe.stack for probe in probes)
        reading = choose(instance, config.settings, Symbols(files), stacks_wanted=stacks_wanted)
        binary = reading.geometry is not None
        kernel = known_kernel(instance, probes, resolver, most, binary=binary, root=root)
        functions = Functions(lists, _names(probes, kernel))
        known = Known(
            kernel,
            files.exists,
            lambda target: functions.answer(target.module, target.symbol, target.offset),
            functions.eprobes(),
        )
        return resolve(replace(config, probes=tuple(probes)), known)


def resolve(config: Config, known: Known) -> list[DryRunRow]:
    """Return a row for each probe, in the order in which the agent would install them."""
    layout_ids = itertools.count()
    taken: list[ProbeSpec] = []
    rows = []
    for probe in config.probes:
        plan = plan_probe(probe, config.settings.namespace, DECODERS, known.kernel, layout_ids)
        if probe.enabled:
            rows.append(_settle(plan, known, taken))
        else:
            rows.append(_row(plan, "disabled", None, "'enabled: false' in the configuration", {}))
    return rows


def _settle(plan: ProbePlan, known: Known, taken: list[ProbeSpec]) -> DryRunRow:
    """Choose the first alternative that is sure to work, or an earlier one that only an attempt can decide.

    ``taken`` are the sure alternatives of the previous probes; that of this probe is added.
    """
    refused: dict[str, str] = {}
    unsure: tuple[ProbeSpec | JoinedSpec, str] | None = None
    sure: tuple[ProbeSpec | JoinedSpec, str] | None = None
    for spec in plan.alternatives:
        if isinstance(spec, Unsupported):
            refused[spec.target] = spec.reason
            continue
        (can, why), chosen = _judge(spec, known, taken)
        if can is False:
            refused[spec.target] = why
        elif can is None:
            unsure = unsure or (spec, why)
        else:
            taken += chosen
            refused.pop(spec.target, None)
            sure = spec, why
            break
    if (first := unsure or sure) is None:
        return _row(plan, "absent" if plan.probe.optional else "down", None, "", refused)
    spec, why = first
    refused.pop(spec.target, None)
    if unsure and sure and sure[0].target != spec.target:
        why += f"; else {sure[0].target}"
    return _row(plan, "up" if sure else "unsure", spec, why, refused)


def _judge(
    spec: ProbeSpec | JoinedSpec, known: Known, taken: list[ProbeSpec]
) -> tuple[Answer, list[ProbeSpec]]:
    """Predict the kernel's answer to one way to attach, and return it with the events attached then.

    A call or a pair needs all its events. Each is attached in the first way that is sure, if there is one.
    """
    if isinstance(spec, ProbeSpec):
        return _judge_one(spec, known, taken), [spec]
    answers: list[Answer] = []
    chosen: list[ProbeSpec] = []
    for ways in spec.ways:
        there = [*taken, *chosen]
        judged = [(_judge_one(way, known, there), way) for way in ways if isinstance(way, ProbeSpec)]
        answer, way = next((one for can in (True, None) for one in judged if one[0].can is can), judged[-1])
        if answer.can is False:
            return answer, []
        answers.append(answer)
        chosen.append(way)
    return min(answers, key=lambda one: (one.can is True, not one.why)), chosen


def _judge_one(spec: ProbeSpec, known: Known, taken: Iterable[ProbeSpec]) -> Answer:
    """Predict the kernel's answer to one way to attach to one event."""
    if spec.file is None:
        if not known.has(f"events/{spec.system}/{spec.event}/enable"):
            return Answer(False, "it can be seen, and not be enabled")
        why = cannot_share(spec, taken)
        return Answer(False, why) if why else Answer(True)
    if not known.has(spec.file):
        return Answer(False, not_built(spec.file))
    if spec.file == "kprobe_events":
        return known.function(parse_target(spec.target))
    # Planning has already checked a location in a file, and whether a function can have an fprobe.
    return known.eprobes if spec.verb == "e" else Answer(True)


def _row(
    plan: ProbePlan,
    state: ShownState,
    spec: ProbeSpec | JoinedSpec | None,
    note: str,
    refused: dict[str, str],
) -> DryRunRow:
    first = plan.probe.attach[0].target
    kind, target = (spec.kind, spec.target) if spec else (first.kind.value, str(first))
    others = (
        ("" if other == target else f"{other}: ") + reason.rstrip(".") for other, reason in refused.items()
    )
    why = tuple(text for text in (*((spec.help, spec.because) if spec else ()), note, *others) if text)
    return DryRunRow(plan.probe.name, state, kind, target, spec.plan if spec else "", why)


def _names(probes: Iterable[Probe], kernel: Kernel) -> Iterator[str]:
    """Yield the functions to look up, by their configured names and by their names on this kernel."""
    for one in (one for probe in probes for attach in probe.attach for one in attach.single):
        yield one.target.symbol
        with suppress(ProbeRefused):
            yield kernel.place(one.target)[0].symbol
