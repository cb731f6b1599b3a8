"""Collects probes as the agent does, for JSON objects and tables: plans, installs, reads pages.

request ──► emit (YAML) ──► config ──► plan ──► attach ──► source (binary) ──► records, or aggregate
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from kprobe_exporter.aggregate.matching import joined_record
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.recipes import counted_stacks, join_recipe, record_filters, source_recipe
from kprobe_exporter.config.model import Attach, Label, Metric, Probe, Settings
from kprobe_exporter.errors import GrammarError, ProbeRefused, TracefsError
from kprobe_exporter.grammar.event_format import parse_format
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.labels import decoders
from kprobe_exporter.model.aggregation import Recipe
from kprobe_exporter.model.joins import JoinRecipe, Joins
from kprobe_exporter.model.records import COMMON_COMM, Batch, Join, Layout
from kprobe_exporter.model.stacks import StackTally
from kprobe_exporter.model.thread_times import ThreadTimesPlan
from kprobe_exporter.plan import (
    Kernel,
    ProbePlan,
    plan_probe,
    recorded,
    wants_symbols,
    wants_tgid,
)
from kprobe_exporter.plan.tracepoint import is_readable
from kprobe_exporter.probing.attach import Attached, is_of_time, settle
from kprobe_exporter.probing.event_source import BufferReader, EventSource, choose
from kprobe_exporter.probing.kernel_info import expanded, known_kernel
from kprobe_exporter.recording.marks import SYSTEM, marks_layout
from kprobe_exporter.source.reader import Pipe
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.trace.facts import ProcessFacts, labels_of_facts
from kprobe_exporter.trace.session import TraceSession
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.probes import Installed, names_in_use
from kprobe_exporter.tracefs.thread_ids import OwnThreads

log = logging.getLogger(__name__)

NAMESPACE = Settings().namespace
MOST = 1000
"""The largest number of functions that a pattern may match."""

CALL_NUMBER = "__syscall_nr"
"""The field with the number of a system call, which its name says."""

WANTED = Metric("counter", "total", "", labels=(Label("comm", COMMON_COMM), Label("caller", "caller")))
"""A metric that makes the plan record each event's thread and caller, to show single events."""


@dataclass(slots=True)
class Capture:
    """The installed probes. ``buffers`` deliver their events; None if no probe records events.

    The kernel may refuse single probes that a pattern ``matched``; ``warn`` is called with a summary.
    ``pairing`` joins calls. ``facts`` are those of the processes of the records that were delivered last.
    ``marks`` is the layout of programs' marks, None if they are not wanted.
    """

    plans: list[ProbePlan]
    attached: list[Attached]
    buffers: BufferReader | None
    matched: frozenset[str]
    warn: Callable[[str], None]
    pairing: Pairing = field(default_factory=Pairing)
    facts: ProcessFacts = field(default_factory=ProcessFacts)
    marks: Layout | None = None

    @property
    def pipe(self) -> Pipe | None:
        return None if self.buffers is None else self.buffers.pipe

    @property
    def parts(self) -> list[Installed]:
        return [part for attached in self.attached for part in attached.parts]

    def open_stacks(self, join: Join) -> tuple[list[StackTally], int]:
        """Return the stacks with which what is outstanding of a join began, and the number without one."""
        layout_id = join.layout.layout_id
        tallies, without = ([], 0) if self.buffers is None else self.buffers.open_stacks(layout_id)
        return tallies, without + self.pairing.outstanding(layout_id, time.monotonic_ns())

    def add(self, plan: ProbePlan, attached: Attached) -> None:
        self.plans.append(plan)
        self.attached.append(attached)

    def take(self, deliver: Callable[[Batch], None], batch: Batch) -> None:
        """Join calls, learn the facts of processes, and pass the batch on."""
        batch = self.pairing.pair(batch)
        self.facts.take(batch)
        deliver(batch)

    def enable(self) -> None:
        """Start recording. Raises ProbeRefused; for a pattern only if all its probes are refused."""
        self.facts.begin()
        refused: dict[str, str] = {}
        for attached in self.attached:
            try:
                attached.enable()
            except ProbeRefused as error:
                attached.disable()
                if attached.spec.probe not in self.matched:
                    raise
                refused[attached.spec.target] = str(error)
        self.leave_out(refused, len(self.attached))

    def leave_out(self, refused: Mapping[str, str], among: int) -> None:
        """Warn of the refused targets of a pattern. Raises ProbeRefused if all ``among`` are refused."""
        if not refused:
            return
        target, reason = next(iter(refused.items()))
        example = f"such as {target}: {reason.rstrip('.')}."
        if len(refused) == among:
            raise ProbeRefused(f"nothing that the pattern matches can be traced, {example}")
        self.warn(f"{among} match the pattern, and {len(refused)} of them are refused, {example}")


@contextmanager
def collected(
    session: TraceSession,
    probes: Sequence[Probe],
    deliver: Callable[[Batch], None],
    *,
    single: bool = False,
    all_fields: bool = False,
    any_thread: bool = False,
    facts: ProcessFacts | None = None,
    marks: bool = False,
    times: Callable[[Join, Mapping[str, Layout]], ThreadTimesPlan] | None = None,
) -> Iterator[Capture]:
    """Install the probes without enabling them; stop recording on exit. Raises TracefsError.

    The session's instance removes the probes: all at once takes less time than one after the other. Matches
    of a pattern that the kernel refuses are omitted, with a warning that sums them up. If possible, the
    records are added up as they are read. If ``single``, they come one by one, with their process.
    ``all_fields``: a tracepoint without fetch arguments has all its readable fields. ``any_thread``: the
    events of this thread are recorded as well, because they are about others. ``facts`` become those of the
    processes of these records. ``marks``: programs' marks are delivered, too. ``times`` says how the time of
    threads is added up, from the scheduler's events and the layouts of the other probes by their names.
    """
    instance = session.instance
    if any_thread:
        instance.guard = None
    if _has_pair(probes) and instance.names is not None:
        probes = [_begun_by(instance.names, probe) for probe in probes]
    symbols = Symbols(instance.files)
    planned = [recorded(probe, counted_by_kernel=instance.counts_tracepoints()) for probe in probes]
    event_source = _pages(instance, symbols, planned)
    resolver = Resolver.of(running_kernel(instance.files))
    found = expanded(probes, resolver, MOST, instance.probed_files)
    kernel = known_kernel(instance, found, resolver, MOST, binary=True)
    layout_ids, taken = itertools.count(), names_in_use(instance)
    matched = frozenset({probe.name for probe in found} - {probe.name for probe in probes})
    capture = Capture([], [], None, matched, session.warn, facts=facts or ProcessFacts())
    capture.marks = marks_layout(next(layout_ids)) if marks else None
    refused: dict[str, str] = {}
    known = decoders(symbols.text, Pods(), kernel.types.words)
    try:
        own = capture.facts.install(instance, kernel, layout_ids)
        for each in found:
            plan = plan_probe(
                _fetching_all(each, kernel) if all_fields else each, NAMESPACE, known, kernel, layout_ids
            )
            one_of_many = each.name in capture.matched
            # Explaining a refusal reads all symbols of the kernel, which is too slow for each match.
            explain = _plain if one_of_many else resolver.explain
            attached, reasons = settle(instance, plan, taken, [part.spec for part in capture.parts], explain)
            if attached is not None:
                capture.add(plan, attached)
            elif one_of_many:
                refused |= reasons
            else:
                why = " ".join(f"{target}: {why}" for target, why in reasons.items())
                if not each.optional:
                    raise TracefsError(why)
                log.info("%s is omitted: %s", each.name, why)
        capture.leave_out(refused, len(found))
        capture.buffers = _reading(
            session,
            capture,
            event_source,
            symbols,
            own,
            deliver,
            single=single,
            times=times,
        )
        yield capture
    finally:
        if capture.pipe is not None:
            capture.pipe.close()
        elif instance.threads is not None:
            instance.threads.close_pipes()
        instance.stop_recording()


def _reading(
    session: TraceSession,
    capture: Capture,
    event_source: EventSource,
    symbols: Symbols,
    own: dict[Layout, str],
    deliver: Callable[[Batch], None],
    *,
    single: bool,
    times: Callable[[Join, Mapping[str, Layout]], ThreadTimesPlan] | None,
) -> BufferReader | None:
    """Return the reader that delivers the events, joined; None if no probe records any.

    ``own`` are the layouts of the tracepoints about threads that the facts of processes need.
    """
    layouts: dict[Layout, str] = {}
    recipes: dict[int, Recipe] = {}
    joins: dict[int, JoinRecipe] = {}
    for plan, attached in zip(capture.plans, capture.attached, strict=True):
        if attached.spec.plan != "events":
            continue
        layouts |= attached.layouts
        layout_id, only = attached.layout.layout_id, attached.residual_filter
        declared, stacks = plan.probe.stacks, None
        if declared is not None and any(one.layout.stack or one.layout.user_stack for one in attached.parts):
            stacks = counted_stacks(declared.weigh)
        if is_of_time(attached):
            continue
        if attached.joined is not None:
            capture.pairing.add(attached.joined)
            join = join_recipe(attached.joined, plan.metrics, only, stacks)
            if not single and join is not None:
                joins[layout_id] = join._replace(make=joined_record(attached.joined))
        elif not single and (recipe := source_recipe(attached.layout, plan.metrics, only, stacks)):
            recipes[layout_id] = recipe
    if not layouts:
        return None
    named = {one.spec.probe: one.layout for one in capture.attached}
    timed = next((one.joined for one in capture.attached if is_of_time(one)), None)
    probes = [plan.probe for plan in capture.plans]
    if wants_symbols(probes) or any(layout.caller or layout.stack for layout in layouts):
        symbols.name(0)  # loads the symbols before the probes are enabled: it is slow
    buffers = BufferReader(
        session.instance,
        event_source,
        partial(capture.take, deliver),
        session.buffer_kib,
    )
    marks = {capture.marks: SYSTEM} if capture.marks is not None else {}
    filters = record_filters(one.part_filters for one in capture.attached)
    buffers.prepare(
        symbols,
        layouts | own | marks,
        recipes,
        filters | capture.facts.starts(buffers.thread_started),
        Joins(
            joins,
            {} if single else capture.facts.changes,
            None if times is None or timed is None else times(timed, named),
        ),
        tgid=single or wants_tgid(probes),
        of_threads=own,
        of_all_threads={part.layout.layout_id for part in capture.parts if part.spec.role == "end"},
    )()
    return buffers


def _pages(instance: Instance, symbols: Symbols, planned: Sequence[Probe]) -> EventSource:
    """Return how the events of these probes are read. If need be the kernel records programs' stacks."""
    stacks_wanted = any(probe.stack for probe in planned)
    event_source = choose(instance, Settings(), symbols.visible, stacks_wanted=stacks_wanted)
    if event_source.geometry is None:
        raise TracefsError(
            f"{event_source.because}: trace without --json and --count, which gives the kernel's text."
        )
    if any(probe.user_stack for probe in planned):
        instance.write("options/userstacktrace", "1")
    if _has_pair(planned):
        # Other threads may end what one began, as this one a wait for the CPU, by leaving it.
        instance.guard = None
        event_source = event_source._replace(own_threads=_own_threads(instance, instance.own_tid()))
    return event_source


def _own_threads(instance: Instance, tid: int) -> Callable[[], frozenset[int]]:
    """Return what lists this process's threads, of which ``tid`` is the only one that makes many events.

    In a PID namespace a kernel without the function tracer cannot list them.
    """
    try:
        return OwnThreads(instance, tid)
    except OSError:
        return lambda: frozenset((tid,))


def _has_pair(probes: Sequence[Probe]) -> bool:
    return any(attach.target.kind is Kind.PAIR for probe in probes for attach in probe.attach)


def _begun_by(names: str, probe: Probe) -> Probe:
    """Return the probe with a filter of threads' names where its events begin: any thread may end them."""

    def narrowed(one: Attach) -> Attach:
        return replace(one, filter=names if one.filter is None else f"({one.filter}) && {names}")

    def begun(one: Attach) -> Attach:
        if not one.begins:
            return narrowed(one)
        begins = tuple(map(narrowed, one.begins))
        return replace(one, begins=begins, end=begins[0] if one.again else one.end)

    return replace(probe, attach=tuple(map(begun, probe.attach)))


def _plain(target: Target, error: ProbeRefused) -> str:
    return str(error)


def each_event(probe: Probe, *, stacks: bool, user_stacks: bool = False) -> Probe:
    """Return the probe so that every event is recorded, with its thread and, if known, its caller.

    It keeps the labels that show facts of the thread's process.
    """
    with_caller = (Kind.KRETPROBE, Kind.FEXIT, Kind.CALL)
    known = all(attach.target.kind in with_caller for attach in probe.attach)
    labels = WANTED.labels if known else WANTED.labels[:1]
    metric = replace(WANTED, labels=(*labels, *labels_of_facts(probe.labels)))
    return replace(probe, aggregate="events", stack=stacks, user_stack=user_stacks, metrics=(metric,))


def _fetching_all(probe: Probe, kernel: Kernel) -> Probe:
    widened = replace(probe, attach=tuple(_fetching(attach, kernel) for attach in probe.attach))
    # Without eprobes the tracepoint's own record is read, and only the fields that a metric uses.
    single = [one for attach in widened.attach for one in (attach.begins or (attach,))]
    labels = tuple(Label(name, name) for one in single for name in one.fetch)
    return replace(
        widened, metrics=tuple(replace(one, labels=one.labels + labels) for one in widened.metrics)
    )


def _fetching(attach: Attach, kernel: Kernel) -> Attach:
    target = attach.target
    if target.kind is Kind.SYSCALL and attach.end is not None and not attach.fetch:
        from kprobe_exporter.config.sites import BUILT_IN  # noqa: PLC0415 - a table does without

        [begin] = attach.begins
        names = [name for name in _fetching(begin, kernel).fetch if name != CALL_NUMBER]
        fetch = {f"arg_{name}" if name in BUILT_IN else name: name for name in names}
        return replace(attach, begins=(replace(begin, fetch=fetch),))
    if target.kind is not Kind.TRACEPOINT or attach.fetch:
        return attach
    text = kernel.event_format(target.system, target.event)
    if text is None:
        return attach
    try:
        fields = parse_format(text).fields
    except GrammarError:
        return attach
    return replace(attach, fetch={name: name for name, field in fields.items() if is_readable(field)})
