"""Predicts how `run` would attach each probe on a kernel, by reading alone: it changes nothing."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple, TypeAlias

from kprobe_exporter.config.model import Config, Probe
from kprobe_exporter.diagnose.lacking import lacked
from kprobe_exporter.errors import GrammarError, ProbeRefused, one_line
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.identity.running import RunningContainers
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.snapshot import ShownState, summary
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan import Alternative, JoinedSpec, Kernel, cannot_share, plan_probe
from kprobe_exporter.plan.system_call import function_of
from kprobe_exporter.plan.typed import REGISTERS
from kprobe_exporter.probing.container_files import ContainerFiles
from kprobe_exporter.probing.event_source import choose
from kprobe_exporter.probing.kernel_info import expanded, known_kernel
from kprobe_exporter.symbols.functions import Answer, Functions
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.tracefs.define import not_built
from kprobe_exporter.tracefs.features import uretprobe_hazard
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import KernelFiles


@dataclass(frozen=True, slots=True)
class DryRunRow:
    """How one probe would be attached. ``plan`` is empty for one that would not be.

    ``lacks`` is then the part of the kernel that each of its alternatives needs, as a sentence; None if only
    ``why`` tells.
    """

    probe: str
    state: ShownState
    kind: str
    target: str
    plan: str
    why: tuple[str, ...] = ()
    lacks: str | None = field(default=None, compare=False)

    def as_object(self) -> dict[str, object]:
        """Return what `--json` shows, in which ``why`` has all reasons."""
        return {key: value for key, value in asdict(self).items() if key != "lacks"}


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about the kernel that reading shows: facts for planning, and its expected answers to definitions.

    ``programs`` tells whether the programs of this machine are those that the kernel would probe.
    ``uretprobes`` is a warning about return probes in programs. ``variable`` answers for a symbol that is
    fetched. ``machine`` is the kernel's, by uname(2).
    """

    kernel: Kernel
    has: Callable[[str], bool]
    function: Callable[[Target], Answer]
    eprobes: Answer
    programs: bool = True
    uretprobes: str | None = None
    variable: Callable[[str], Answer] = lambda symbol: Answer(True)
    machine: str = "x86_64"
    containers: ContainerFiles = field(default_factory=lambda: ContainerFiles(RunningContainers()))


class ProgramProbe(NamedTuple):
    """An alternative in a program's file, which is not looked at: that is on another machine."""

    kind: str
    target: str
    help: str
    plan: str = ""
    because: str = "a program is a file of the machine and not of its kernel: only 'check --live' there looks"


RETURNS = re.compile(rf"(?:^|> |\| )(?:{Kind.URETPROBE}|{Kind.UCALL}):")
"""Found in a target that has a return probe in a program."""

TRAMPOLINES = {Kind.FEXIT: "fprobe", Kind.KRETPROBE: "rethook", Kind.CALL: "rethook"}
"""By kind, the trampoline through which a function returns. No stack goes on beyond two of them."""

CUT_STACKS = "a fexit and a kretprobe or call of one function cut the stacks of each other's events"


FETCHED = re.compile(r"(?<!:)%(?P<register>[a-z]\w*)|@(?P<symbol>[A-Za-z_.][\w.]*)")
"""Finds the registers and symbols in fetch arguments, but not the type ``:%pd``."""

Settled: TypeAlias = ProbeSpec | JoinedSpec | ProgramProbe


def verdict(rows: Iterable[DryRunRow]) -> str:
    """Return in one line how many probes would be up, and which would not."""
    return summary(((one_line(row.probe), row.state) for row in rows), "would be up")


def look(
    config: Config, files: KernelFiles, visible: Callable[[], bool], *, programs: bool = True
) -> list[DryRunRow]:
    """Resolve a configuration against a kernel; see ``look_each``."""
    [rows] = look_each([config], files, visible, programs=programs)
    return rows


def look_each(
    configs: Iterable[Config], files: KernelFiles, visible: Callable[[], bool], *, programs: bool = True
) -> list[list[DryRunRow]]:
    """Resolve each configuration by itself against a kernel, whose lists and types are read once.

    Raises OSError, and TracefsError if no agent could start. ``visible`` tells whether the agent may see the
    addresses of functions. ``choose`` decides between pages and text, as it does for the agent. Without
    ``programs`` no file of a program is looked at.
    """
    resolver = Resolver.of(files)
    with Instance.top(files.tracefs) as instance:
        opened = instance.probed_files
        whole = [
            replace(one, probes=tuple(expanded(one.probes, resolver, one.settings.max_matches, opened)))
            for one in configs
        ]
        probes = [probe for config in whole for probe in config.probes]
        most = max(config.settings.max_matches for config in whole)
        kernel = known_kernel(instance, probes, resolver, most, binary=True, files=files)
        functions = Functions(resolver.lists, _names(probes, kernel))
        known = Known(
            kernel,
            files.tracefs.exists,
            lambda target: _answer(functions, kernel, target),
            functions.eprobes(),
            programs,
            uretprobe_hazard(files.release, files.machine),
            functions.variable,
            files.machine,
        )
        found = []
        for config in whole:
            stacks = any(probe.stack for probe in config.probes)
            reading = choose(instance, config.settings, visible, stacks_wanted=stacks)
            here = replace(kernel, binary=reading.geometry is not None)
            found.append(resolve(config, replace(known, kernel=here)))
        return found


def resolve(config: Config, known: Known) -> list[DryRunRow]:
    """Return a row for each probe, in the order in which the agent would install them."""
    layout_ids = itertools.count()
    taken: list[ProbeSpec] = []
    rows = []
    for probe in config.probes:
        ways = [*_ways(probe, config.settings.namespace, known, layout_ids)]
        if probe.enabled:
            row = _settle(probe, ways, known, taken)
            if known.uretprobes and row.state in ("up", "unsure") and RETURNS.search(row.target):
                row = replace(row, why=(*row.why, known.uretprobes))
            if row.state == "down":
                row = replace(row, lacks=lacked(probe.attach, known.has, known.eprobes))
            rows.append(row)
        else:
            rows.append(row_of(probe, "disabled", None, "'enabled: false' in the configuration", {}))
    return [*_with_cut_stacks(config.probes, rows)]


def _with_cut_stacks(probes: Iterable[Probe], rows: list[DryRunRow]) -> Iterator[DryRunRow]:
    """Yield the rows, with a warning for stacks at functions that return through two trampolines."""
    used: dict[str, set[str]] = {}
    for row in rows:
        kind, _, function = row.target.partition(":")
        if row.state in ("up", "unsure") and kind in TRAMPOLINES:
            used.setdefault(function, set()).add(TRAMPOLINES[Kind(kind)])
    for probe, row in zip(probes, rows, strict=True):
        both = len(used.get(row.target.partition(":")[2], ())) > 1 and row.kind in TRAMPOLINES
        has_stacks = probe.stack or probe.stacks is not None
        yield replace(row, why=(*row.why, CUT_STACKS)) if both and has_stacks else row


def _ways(
    probe: Probe, namespace: str, known: Known, layout_ids: Iterator[int]
) -> Iterator[Alternative | ProgramProbe]:
    """Yield what to try, in order."""
    for attach in probe.attach:
        target = attach.target
        if known.programs or not any(one.target.kind.in_file for one in attach.single):
            alone = replace(probe, attach=(attach,))
            planned = known.containers.plan(
                alone, lambda placed: plan_probe(placed, namespace, DECODERS, known.kernel, layout_ids)
            )
            yield from planned.alternatives
        elif known.has("uprobe_events"):
            yield ProgramProbe(target.kind.value, str(target), attach.help)
        else:
            yield Unsupported(str(target), not_built("uprobe_events"))


def _settle(
    probe: Probe, ways: Iterable[Alternative | ProgramProbe], known: Known, taken: list[ProbeSpec]
) -> DryRunRow:
    """Choose the first alternative that is sure to work, or an earlier one that only an attempt can decide.

    ``taken`` are the sure alternatives of the previous probes; that of this probe is added.
    """
    refused: dict[str, str] = {}
    waiting = False
    unsure: tuple[Settled, str] | None = None
    sure: tuple[Settled, str] | None = None
    for spec in ways:
        if isinstance(spec, Unsupported):
            refused[spec.target] = spec.reason
            waiting |= spec.waiting
            continue
        if isinstance(spec, ProgramProbe):
            unsure = unsure or (spec, "")
            continue
        (can, why), chosen = _judge(spec, known, taken)
        if isinstance(spec, JoinedSpec):
            spec = spec.settled(chosen)  # noqa: PLW2901
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
        return row_of(probe, "absent" if probe.optional or waiting else "down", None, "", refused)
    spec, why = first
    refused.pop(spec.target, None)
    if unsure and sure and sure[0].target != spec.target:
        why = f"{why}; else {sure[0].target}" if why else f"else {sure[0].target}"
    return row_of(probe, "up" if sure else "unsure", spec, why, refused)


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
    answer = Answer(True)  # planning has checked a location in a file, and if a function can have an fprobe
    if spec.file == "kprobe_events":
        answer = known.function(parse_target(spec.target))
    elif spec.verb == "e":
        answer = known.eprobes
    answers = [answer, *_fetched(spec, known)]
    return next((one for can in (False, None) for one in answers if one.can is can), answer)


def _fetched(spec: ProbeSpec, known: Known) -> Iterator[Answer]:
    """Yield an answer for each register and each symbol that the fetch arguments name."""
    registers = REGISTERS.get(known.machine, ())
    for body in (spec.body, *spec.more):
        for found in FETCHED.finditer(body.partition(" ")[2]):
            if found["symbol"]:
                yield known.variable(found["symbol"])
            elif found["register"] not in registers:
                register = found["register"]
                yield Answer(None, f"only trying tells whether the kernel knows the register %{register}")


def _answer(functions: Functions, kernel: Kernel, target: Target) -> Answer:
    """Return what the kernel's lists say of a function that has been planned: of its name here."""
    here = kernel.place(target)[0]
    return functions.answer(here.module, here.symbol, here.offset)


def row_of(
    probe: Probe,
    state: ShownState,
    spec: Settled | None,
    note: str,
    refused: dict[str, str],
) -> DryRunRow:
    """Return the row of a probe that is attached as ``spec``, or nowhere, and why other ways are refused."""
    first = probe.attach[0].target
    kind, target = (spec.kind, spec.target) if spec else (first.kind.value, str(first))
    others = (
        ("" if other == target else f"{other}: ") + reason.rstrip(".") for other, reason in refused.items()
    )
    why = tuple(text for text in (*((spec.help, spec.because) if spec else ()), note, *others) if text)
    return DryRunRow(probe.name, state, kind, target, spec.plan if spec else "", why)


def _names(probes: Iterable[Probe], kernel: Kernel) -> Iterator[str]:
    """Yield the functions to look up, by their configured and this kernel's names, and fetched symbols."""
    for one in (one for probe in probes for attach in probe.attach for one in attach.single):
        yield one.target.symbol
        with suppress(ProbeRefused, GrammarError):  # a row says why
            yield kernel.place(one.target)[0].symbol
        if not kernel.eprobes and one.target.kind is Kind.TRACEPOINT and one.target.enters_system_call:
            yield kernel.place(function_of(one.target))[0].symbol
        for text in one.fetch.values():
            yield from (found["symbol"] for found in FETCHED.finditer(text) if found["symbol"])
