"""The pipeline of the events: read, joined, counted, exported; and how it changes while they flow."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.agent.probe_stacks import ProbeStacks
from kprobe_exporter.agent.thread_events import (
    ENDS_OF_CALLS,
    Identities,
    comm_places,
    namings,
    starts_of_threads,
)
from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.matching import joined_record
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.recipes import counted_stacks, join_recipe, record_filters, source_recipe
from kprobe_exporter.aggregate.recorded_stacks import RecordedStacks
from kprobe_exporter.aggregate.stack_classes import class_of_seen
from kprobe_exporter.aggregate.stack_counts import StackCounts
from kprobe_exporter.aggregate.thread_times import CgroupPaths, TimeTallies
from kprobe_exporter.config.model import Export, Probe
from kprobe_exporter.identity.procfs import host_proc
from kprobe_exporter.identity.thread_files import ThreadFiles
from kprobe_exporter.identity.thread_sets import processes, threads_of
from kprobe_exporter.model.aggregation import Recipe
from kprobe_exporter.model.joins import JoinRecipe, Joins, times_plan
from kprobe_exporter.model.records import OF_THREADS, Batch, Join, Layout
from kprobe_exporter.model.specs import BY_THREAD, OF_PROCESS, LabelSpec, ProbeSpec
from kprobe_exporter.model.stacks import StackTally
from kprobe_exporter.model.thread_times import ThreadTimesPlan
from kprobe_exporter.plan import fields_used, recorded, wants_tgid
from kprobe_exporter.probing.attach import Attached, is_of_time
from kprobe_exporter.probing.event_source import BufferReader, EventSource
from kprobe_exporter.probing.thread_tracepoints import (
    CHANGES_OF_THREADS,
    Handle,
    handlers,
    process_handlers,
    thread_events,
)
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.instance import Instance

if TYPE_CHECKING:
    from kprobe_exporter.agent.otlp import OtlpExport

log = logging.getLogger(__name__)

REWATCH = 10.0
"""Seconds from one reading of all threads' states to the next."""


class _Flow(NamedTuple):
    """How the events of one probe flow now: ``recipe`` and ``join`` are what the source does of it.

    ``counts`` is where the stacks of its records are counted. ``times`` are the labels of the time of
    threads, if it is made of this probe's events.
    """

    attached: Attached
    recipe: Recipe | None
    join: JoinRecipe | None
    export: Export | None
    counts: StackCounts | None
    attributes: tuple[LabelSpec, ...] = ()
    times: tuple[LabelSpec, ...] | None = None

    @property
    def chosen(self) -> bool:
        """Whether the source chooses what is exported of it, and adds up all."""
        recipe = self.recipe if self.join is None else self.join.recipe
        return recipe is not None and recipe.choice is not None

    @property
    def ends(self) -> set[int]:
        """The layout_ids of the events that end its calls or pairs.

        A thread of the agent may end what another began, as in sched_switch a wait for the processor.
        """
        return {part.layout.layout_id for part in self.attached.parts if part.spec.role == "end"}

    @property
    def exported_one_by_one(self) -> bool:
        """Whether it is exported, and each of its records is needed for that."""
        return self.export is not None and not self.chosen


@dataclass(eq=False)
class Pipeline:
    """The pipeline of all probes' events, from the ring buffer to the numbers.

    The reader's thread owns the pairing, the export and the identities of threads, and calls ``consume``.
    The thread that holds the change lock calls ``switch`` and does all that takes long; the reader's thread
    only applies the change between two rounds. By then the events of removed probes must have been read.
    The remaining probes lose nothing, partial and waiting records included.

    A source of pages joins calls and pairs itself where it can. The pairing knows them all the same: it joins
    the halves that a source delivers.

    The buffer is opened at once. Raises TracefsError if the kernel refuses reading.
    """

    _instance: Instance
    _event_source: EventSource
    _symbols: Symbols
    _buffer_kib: int
    _aggregator: Aggregator
    _identities: Identities
    _stacks: ProbeStacks
    _recorded: RecordedStacks
    _otlp: "OtlpExport | None"

    def __post_init__(self) -> None:
        self._pairing = Pairing(nested=self._otlp is not None)
        self._flows: dict[int, _Flow] = {}
        self._identity_events: Mapping[Layout, Handle] = {}
        self._thread_events: Mapping[Layout, Handle] = {}
        self._starts: set[int] = set()  # the layout_ids of starts of threads, which are no events of a probe
        self._loaded = self._tgid = self._follows_programs = False
        self._times: TimeTallies | None = None
        self._watched_at = -REWATCH  # when the states of threads were read last
        self._states_unknown = False  # after a loss
        self._buffers = BufferReader(self._instance, self._event_source, self.consume, self._buffer_kib)
        self.pipe = self._buffers.pipe

    def consume(self, batch: Batch) -> None:
        """Process a batch, in the reader's thread."""
        if batch.losses:  # threads that were known before these ended may have moved
            self._identities.cgroups.lost(max(loss.end for loss in batch.losses))
        if any(loss.cpu >= OF_THREADS for loss in batch.losses):
            self._identities.processes.lost()
        for layout_id in self._starts & batch.arrived.keys():
            del batch.arrived[layout_id]
        self._identities.names.take(batch)
        if self._times is not None:
            self._states_unknown |= bool(batch.losses)
            self._times.take(batch)
        batch = self._pairing.pair(batch)
        self._recorded.take(batch)
        self._aggregator.consume(batch)
        if self._otlp is not None:
            self._otlp.consume(batch)
            self._identities.whereabouts.forget()

    def reset(self, joins: Iterable[Join], *, threads: bool) -> None:
        """Count open calls as unpaired; with ``threads``, forget cgroups. The reader's thread calls it."""
        for join in joins:
            self._pairing.reset(join)
            self._buffers.drop(join.layout.layout_id)
            if join.by == "time" and isinstance(self.pipe, BinaryPipe):
                self.pipe.threads.lose_times(time.monotonic_ns())
                self._states_unknown = True
        if threads:
            self._identities.cgroups.lost()
            self._identities.processes.lost()
        self.consume(Batch())

    def open_stacks(self, layout_id: int) -> tuple[list[StackTally], int]:
        """Return the stacks of what is outstanding of a call or a pair, and the number of those without one.

        Only a source that joins its events keeps them. The reader's thread calls it.
        """
        flow = self._flows.get(layout_id)
        if flow is not None and flow.join is None:
            return [], self._pairing.outstanding(layout_id, time.monotonic_ns())
        return self._buffers.open_stacks(layout_id)

    def watch_threads(self, call: Callable[[Callable[[], Any]], Any], *, anew: bool = False) -> None:
        """Read from /proc what all threads do, for the sums of their time, after losses or ``anew``.

        ``call`` has the reader's thread begin with those of which no event has told, and end those that have
        ended untold.
        """
        now = time.monotonic()
        if not anew and (not self._states_unknown or now - self._watched_at < REWATCH):
            return
        proc = host_proc()
        if proc is None or self._times is None or not isinstance(self.pipe, BinaryPipe):
            return
        pipe, files, since = self.pipe, ThreadFiles(proc, class_of_seen), time.monotonic_ns()
        self._watched_at, self._states_unknown = now, False

        def watched() -> set[int]:
            return pipe.threads.watched()

        known: set[int] = call(watched)
        here = threads_of(proc, processes(proc))
        threads = [files.observed(tid, since) for tid in here]

        def change() -> None:
            for tid in known - here:
                pipe.threads.end_thread(tid, since)
            pipe.threads.watch(threads)

        call(change)

    def prepare(self, probes: Iterable[Probe]) -> None:
        """Prepare what these probes need, so that no event has to wait for it.

        It takes a while, and changes no probe. Raises StartError for exports that can never work.
        """
        wanted = [probe for probe in probes if probe.enabled]
        for probe in wanted:
            if self._otlp is not None and probe.export is not None:
                self._otlp.open(probe.export.signal)
        if wants_tgid(wanted) and not self._tgid:
            self._instance.write("options/record-tgid", "1")
            self._tgid = True
        by_kernel = self._instance.counts_tracepoints()
        planned = [recorded(probe, counted_by_kernel=by_kernel) for probe in wanted]
        follows = any(probe.user_stack for probe in planned)
        if follows != self._follows_programs:
            self._instance.write("options/userstacktrace", str(int(follows)))
            self._follows_programs = follows
        if any(probe.stack or "caller" in fields_used(probe) for probe in planned) and not self._loaded:
            self._symbols = Symbols(self._instance.files)  # a new object: the reader's is not thread-safe
            self._symbols.name(0)
            self._loaded = True

    def switch(self, call: Callable[[Callable[[], None]], None], probes: Iterable[ProbeState]) -> None:
        """Process the events of these probes only; ``call`` applies the change in the reader's thread.

        Raises TracefsError if an event cannot be read.
        """
        flows = self._flows_of(probes)
        identity_events = {
            **handlers(self._identities.cgroup_events, self._identities.cgroups),
            **process_handlers(self._identities.fact_events, self._identities.processes),
            **process_handlers(self._identities.exit_events, self._identities.processes),
        }
        ends = handlers(self._identities.thread_events, self._pairing.threads)
        layouts = {part.layout: part.system for own in self._identities.tracepoints for part in own.parts}
        of_threads = frozenset(layouts)
        of_all_threads = {layout.layout_id for layout in layouts}
        for flow in flows.values():
            layouts |= flow.attached.layouts
            of_all_threads |= flow.ends
        filters = record_filters(flow.attached.part_filters for flow in flows.values())
        named = {
            part.layout.layout_id: self._looked_up(part.layout)
            for flow in flows.values()
            for part in flow.attached.parts
        }
        by_name = {layout_id: filters.pop(layout_id) for layout_id in [*filters] if named[layout_id]}
        learns = namings(self._identities.name_events)
        starts = starts_of_threads(self._identities.process_events, self._buffers.thread_started)
        self._starts |= starts.keys()
        filters |= starts
        recipes = {layout_id: flow.recipe for layout_id, flow in flows.items() if flow.recipe is not None}
        times, times_of = _times_of(flows.values())
        joins = Joins(
            {layout_id: flow.join for layout_id, flow in flows.items() if flow.join is not None},
            thread_events(self._identities.thread_events, ENDS_OF_CALLS)
            | thread_events(self._identities.cgroup_events, CHANGES_OF_THREADS)
            | thread_events(self._identities.fact_events, CHANGES_OF_THREADS)
            | thread_events(self._identities.exit_events, CHANGES_OF_THREADS),
            times_of,
        )
        swap = self._buffers.prepare(
            self._symbols,
            layouts,
            recipes,
            filters,
            joins,
            tgid=self._tgid,
            of_all_threads=of_all_threads,
            of_threads=of_threads,
        )
        removed = [flow for layout_id, flow in self._flows.items() if flows.get(layout_id) is not flow]
        added = [flow for layout_id, flow in flows.items() if self._flows.get(layout_id) is not flow]
        for layout in self._identity_events.keys() - identity_events.keys():
            self._aggregator.unwatch(layout.layout_id)
        for layout in identity_events.keys() - self._identity_events.keys():
            self._aggregator.watch(layout.layout_id, identity_events[layout])
        self._identity_events = identity_events

        def change() -> None:
            for flow in removed:
                if flow.counts is not None:
                    self._recorded.remove(flow.attached.layout, flow.attached.joined)
                if self._otlp is not None and flow.export is not None:
                    self._otlp.remove(flow.attached, self._pairing)
                elif flow.attached.joined is not None:
                    self._pairing.remove(flow.attached.joined)
            for flow in added:
                if self._otlp is not None and flow.export is not None:
                    self._otlp.add(
                        flow.attached,
                        flow.export,
                        self._pairing,
                        chosen=flow.chosen,
                        labels=flow.attributes,
                    )
                elif flow.attached.joined is not None:
                    self._pairing.add(flow.attached.joined)
                if flow.counts is not None:
                    self._count_stacks(flow.attached, flow.counts)
            for layout in self._thread_events:
                self._pairing.unwatch(layout)
            for layout, handle in ends.items():
                self._pairing.follow(layout, handle)
            self._thread_events = ends
            self._identities.names.follow(learns, named, by_name)
            self._times = times
            self.consume(Batch())  # tells the calls that were open, without waiting for an event
            swap()

        call(change)
        self._flows = flows

    def _count_stacks(self, attached: Attached, counts: StackCounts) -> None:
        self._recorded.add(attached.layout, attached.joined, counts, attached.residual_filter)
        if attached.joined is not None and not is_of_time(attached):
            self._pairing.tell(attached.joined, self._recorded.joined)

    def _flows_of(self, probes: Iterable[ProbeState]) -> dict[int, _Flow]:
        """Return how the events of these probes flow, by layout_id.

        One place knows all exported calls, as they lie in each other: the source, if it can choose what is
        exported of every probe; else the export, which then needs each record.
        """
        attachments = [(probe, attached) for probe in probes for attached in probe.attachments]
        found = [self._flow(*one, choosing=self._buffers.adds_up) for one in attachments]
        if any(flow is not None and flow.exported_one_by_one for flow in found):
            found = [self._flow(*one, choosing=False) for one in attachments]
        return {flow.attached.layout.layout_id: flow for flow in found if flow is not None}

    def _flow(self, probe: ProbeState, attached: Attached, *, choosing: bool) -> _Flow | None:
        """Return how the events of one of a probe's attachments flow, None if it has none.

        ``choosing``: the source chooses what is exported, if it can.
        """
        if attached.spec.plan != "events":
            return None
        if is_of_time(attached):
            labels = probe.plan.metrics.metrics[0].labels
            return _Flow(attached, None, None, None, self._stacks.of(probe.name), times=labels)
        before = self._flows.get(attached.layout.layout_id)
        if before is not None and before.attached is attached and before.chosen <= choosing:
            return before
        export = probe.plan.probe.export
        by_kernel = isinstance(attached.spec, ProbeSpec) and attached.spec.stack_table is not None
        counts = None if by_kernel else self._stacks.of(probe.name)
        sent = export if self._otlp is not None else None
        # A fact of a process comes with what is noted of the record.
        read = tuple(one for one in probe.plan.metrics.attributes if one.first not in OF_PROCESS)
        each = _Flow(attached, None, None, sent, counts, read)
        return self._summed(probe, each, choosing=choosing)

    def _looked_up(self, layout: Layout) -> tuple[int, ...]:
        """Return where records have a name that `ThreadNames` replaces: they are needed one by one."""
        return comm_places(layout) if self._identities.name_events.parts else ()

    def _summed(self, probe: ProbeState, each: _Flow, *, choosing: bool) -> _Flow:
        """Return the flow with what the source does, if it need not deliver each event."""
        attached, export, choice, stacks = each.attached, each.export, None, None
        if any(self._looked_up(part.layout) for part in attached.parts):
            return each
        if export is not None:
            assert self._otlp is not None
            if not choosing:
                return each
            choice = self._otlp.choice(attached, export)
        if each.counts is not None and self._buffers.adds_up:
            stacks = counted_stacks(each.counts.weigh)
        metrics, only = probe.plan.metrics, attached.residual_filter
        if attached.joined is None:
            return each._replace(recipe=source_recipe(attached.layout, metrics, only, stacks, choice))
        join = join_recipe(attached.joined, metrics, only, stacks, choice)
        return each._replace(join=join and join._replace(make=joined_record(attached.joined)))


def _times_of(flows: Iterable[_Flow]) -> tuple[TimeTallies | None, ThreadTimesPlan | None]:
    """Return what makes tallies of the time of threads, and how the source adds it up, if a flow is of it."""
    for flow in flows:
        if flow.times is not None and flow.attached.joined is not None:
            by_cgroup = any(label.first in BY_THREAD for label in flow.times)
            plan = times_plan(flow.attached.joined, frozenset(("all",)), by_cgroup=by_cgroup)
            files = ThreadFiles(host_proc(), class_of_seen)
            return TimeTallies(flow.attached.joined, flow.times, CgroupPaths(files.cgroup)), plan
    return None, None
