"""Tracepoints about threads that the agent records for itself, and the identities that it learns by them."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kprobe_exporter.aggregate.ended_threads import EndedThreads
from kprobe_exporter.aggregate.thread_names import Naming, ThreadNames
from kprobe_exporter.config.model import Attach, Config, Probe
from kprobe_exporter.errors import ProbeRefused, TracefsError
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.pods import Pods, Whereabouts
from kprobe_exporter.identity.procfs import HOST_IDS, host_proc
from kprobe_exporter.identity.threads import living
from kprobe_exporter.model.aggregation import RecordFilter
from kprobe_exporter.model.joins import ThreadEvent
from kprobe_exporter.model.records import TID, TIME, VALUES, Layout, Record
from kprobe_exporter.model.specs import OF_PROGRAM, OF_THREAD, ProbeSpec
from kprobe_exporter.plan import Kernel, wants_tgid
from kprobe_exporter.plan.tracepoint import tracepoint_specs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install

log = logging.getLogger(__name__)

Handle: TypeAlias = Callable[[Record], None]

PODS = Path("/var/log/pods")
"""Where this directory exists, exported events get attributes of their container and pod."""


class Followed(NamedTuple):
    """A tracepoint about threads. ``fields`` maps our names of its fields to the kernel's."""

    system: str
    event: str
    fields: Mapping[str, str] = {}


# Not sched_process_fork: only this one has the flags, for threads and for a cgroup named by clone3().
NEW = Followed("task", "task_newtask", {"child": "pid", "flags": "clone_flags"})
MOVE = Followed(
    "cgroup", "cgroup_attach_task", {"leader": "pid", "hierarchy": "dst_root", "path": "dst_path"}
)
EXEC = Followed("sched", "sched_process_exec", {"old": "old_pid"})
EXIT = Followed("sched", "sched_process_exit")

NAMED = NEW._replace(fields={"named": "pid", "name": "comm"})
RENAMED = Followed("task", "task_rename", {"named": "pid", "name": "newcomm"})

CGROUP_EVENTS = (NEW, MOVE, EXEC, EXIT)
NAME_EVENTS = (NAMED, RENAMED)
THREAD_EVENTS = (NEW, EXEC, EXIT)


@dataclass(eq=False)
class OwnTracepoints:
    """Tracepoints that are installed together while they are ``wanted``, without definitions.

    They are in a second instance, and need pages: in text, an unprivileged user could forge these events by a
    file's name. ``without`` says what the agent does without them. The reader's thread calls ``begin`` when
    recording has begun.
    """

    _followed: Sequence[Followed]
    without: str
    begin: Callable[[], None] = lambda: None
    wanted: bool = False
    enabled: bool = False
    parts: tuple[Installed, ...] = ()

    def follow(self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int]) -> str | None:
        """Install them if they are wanted, else disable them. Return why they cannot be installed."""
        if not self.wanted:
            self.disable()
        if not self.wanted or self.parts:
            return None
        if not kernel.binary:
            return ", where events are read as text"
        try:
            threads = instance.open_threads()
            for one in self._followed:
                self.parts += (install(threads, _spec(one, kernel, layout_ids), set()),)
        except (ProbeRefused, TracefsError) as error:
            self.disable()
            return f": {error}"
        except BaseException:
            self.disable()
            raise
        return None

    def enable(self) -> None:
        """Start recording; call ``begin`` afterwards. Raises ProbeRefused."""
        for part in self.parts:
            part.enable()
        self.enabled = True

    def disable(self) -> None:
        """Stop recording, and forget what is installed. Never raises."""
        for part in self.parts:
            part.disable()
        self.parts, self.enabled = (), False


ENDS_OF_CALLS: Mapping[str, ThreadEvent] = {
    NEW.event: ThreadEvent("started", ("child", "flags")),
    EXEC.event: ThreadEvent("executed", ("old",)),
    EXIT.event: ThreadEvent("exited"),
}
"""What a source that joins calls itself takes from the tracepoints about threads."""


CHANGES_OF_CGROUPS: Mapping[str, ThreadEvent] = {
    NEW.event: ThreadEvent("placed", ("child",)),
    MOVE.event: ThreadEvent("moved"),
    EXEC.event: ThreadEvent("moved", ("old",)),
}
"""What a source that adds up by cgroup takes from them. A thread that has exited stays in its cgroup."""


def thread_events(own: OwnTracepoints, wanted: Mapping[str, ThreadEvent]) -> dict[int, ThreadEvent]:
    """Return, by layout_id, what a source takes from those that are installed."""
    return {part.layout.layout_id: wanted[part.event] for part in own.parts if part.event in wanted}


def looked_up(config: Config) -> list[str]:
    """Return what the agent looks up in /proc for a configuration: labels, then other things."""
    labels = [label for probe in config.probes for metric in probe.metrics for label in metric.labels]
    decoders = OF_THREAD | {OF_PROGRAM}
    found = sorted({label.name for label in labels if label.decode and label.decode[0].name in decoders})
    if any(probe.stacks is not None and probe.stacks.user for probe in config.probes):
        found.append("stacks of programs")
    if any(probe.within is not None for probe in config.probes):
        found.append("containers to probe")
    return found


def starts_of_threads(
    own: OwnTracepoints, started: Callable[[int, int, int], None]
) -> dict[int, RecordFilter]:
    """Return, by layout_id, filters that pass the starts of threads on to ``started``, and to nothing else.

    A source filters records while it reads: the process of a thread is known before its own events need it.
    """
    return {part.layout.layout_id: RecordFilter(_passer(part.layout, started), None) for part in own.parts}


def _passer(layout: Layout, started: Callable[[int, int, int], None]) -> Callable[[Record], bool]:
    child, flags = layout.index("child"), layout.index("flags")

    def passes(record: Record) -> bool:
        started(record[TID], record[child], record[flags])
        return False

    return passes


class Identities:
    """The cgroups and pods of threads, and their ends. The reader's thread owns it while that runs.

    Threads are tracked only while the configuration needs it. The thread that holds the change lock calls
    ``configure`` and ``follow``, before the reader knows of the change. With ``nested`` a container in a
    container counts. ``notice`` is a sentence about the things that stay unknown in this PID namespace.
    """

    def __init__(self, *, nested: bool) -> None:
        self.nested = nested
        self.pods = Pods()
        self.cgroups = Cgroups()
        self.cgroup_events = OwnTracepoints(
            CGROUP_EVENTS, "cgroups are looked up in /proc only", self._read_cgroups
        )
        self.thread_events = OwnTracepoints(THREAD_EVENTS, "calls stay open when their thread ends")
        self.process_events = OwnTracepoints((NEW,), "processes of threads that have ended may be unknown")
        self.names = ThreadNames()
        self.name_events = OwnTracepoints(
            NAME_EVENTS, "names of threads are looked up in /proc only", self._read_names
        )
        self.tracepoints = (
            self.cgroup_events,
            self.thread_events,
            self.process_events,
            self.name_events,
        )
        self.notice = ""
        self._exported = False
        self.whereabouts = Whereabouts(self.cgroups, self.pods, nested=nested)

    def configure(self, config: Config) -> None:
        """Take from the configuration what is needed from now on."""
        labels = (label for probe in config.probes for metric in probe.metrics for label in metric.labels)
        exported = config.otlp is not None and any(probe.export is not None for probe in config.probes)
        self._exported = exported and PODS.is_dir()
        self._check_ids(looked_up(config))
        self.cgroup_events.wanted = self._exported or any(
            label.decode and label.decode[0].name in OF_THREAD for label in labels
        )
        self.process_events.wanted = wants_tgid(probe for probe in config.probes if probe.enabled)
        self.thread_events.wanted = any(
            attach.end is not None for probe in config.probes for attach in probe.attach
        )

    def _check_ids(self, needed: list[str]) -> None:
        """Report the things for which this process would need the host's thread ids, once."""
        before, self.notice = self.notice, ""
        if needed and host_proc() is None:
            why = "events have the host's thread ids, and /proc here has those of another PID namespace"
            self.notice = f"unknown for most threads: {', '.join(needed)}, because {why}. {HOST_IDS}."
        if self.notice not in ("", before):
            log.warning("%s", self.notice)

    @property
    def attributes(self) -> Callable[[int, int], Mapping[str, str] | None] | None:
        """Looks up the container and the pod of a thread at a noted event; None on hosts without pods."""
        return self.whereabouts.take if PODS.is_dir() else None

    @property
    def note(self) -> Handle | None:
        """Notes the container of a record's thread; call it in the stream's order. None if not needed."""
        return self.whereabouts.note if self._exported else None

    def follow(self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int]) -> None:
        """Install the tracepoints if the configuration needs them, or disable them.

        Where they cannot be installed, the agent reads cgroups from /proc only, and a call whose thread ends
        stays open until a later call of the same thread id takes its place. Processes of short-lived threads
        are searched for in saved_tgids.
        """
        for own in (self.thread_events, self.process_events):
            reason = own.follow(instance, kernel, layout_ids)
            if reason is not None and kernel.binary:
                log.info("%s%s", own.without, reason)
        if (reason := self.cgroup_events.follow(instance, kernel, layout_ids)) is not None:
            log.warning("%s%s", self.cgroup_events.without, reason)

    def follow_names(
        self, layouts: Iterable[Layout], instance: Instance, kernel: Kernel, layout_ids: Iterator[int]
    ) -> None:
        """Do the same for names, which are needed if the events of one of these layouts do not hold them."""
        self.name_events.wanted = any(comm_places(layout) for layout in layouts)
        if (reason := self.name_events.follow(instance, kernel, layout_ids)) is not None and kernel.binary:
            log.warning("%s%s", self.name_events.without, reason)

    def _read_names(self) -> None:
        self.names.begin(living())

    def _read_cgroups(self) -> None:
        """Forget what was known, and read all threads from /proc."""
        self.cgroups.lost()
        self.cgroups.scan()


def comm_places(layout: Layout) -> tuple[int, ...]:
    """Return where a record has a name that was looked up: a tracepoint's own event does not hold it.

    A record whose stack comes after it cannot be replaced by another one.
    """
    if layout.stack or layout.user_stack:
        return ()
    return tuple(place for place, arg in enumerate(layout.args, VALUES) if arg.kind == "comm")


def namings(own: OwnTracepoints) -> dict[int, Naming]:
    """Return, by layout_id, where the events that name a thread have its id and its name."""
    return {
        part.layout.layout_id: Naming(part.layout.index("named"), part.layout.index("name"))
        for part in own.parts
    }


def handlers(own: OwnTracepoints, threads: Cgroups | EndedThreads) -> Mapping[Layout, Handle]:
    """Return the functions that pass the records of what is installed on to ``threads``, in time order."""
    return {part.layout: _handler(part.event, part.layout, threads) for part in own.parts}


def _handler(event: str, layout: Layout, threads: Cgroups | EndedThreads) -> Handle:
    place = layout.index
    match event:
        case NEW.event:
            child, flags = place("child"), place("flags")
            return lambda record: threads.started(record[TID], record[child], record[flags], record[TIME])
        case MOVE.event:
            assert isinstance(threads, Cgroups)
            move, tid, hierarchy, path = threads.attached, place("leader"), place("hierarchy"), place("path")
            return lambda record: move(record[tid], record[hierarchy], record[path] or b"", record[TIME])
        case EXEC.event:
            old = place("old")
            return lambda record: threads.executed(record[old], record[TID])
    return lambda record: threads.exited(record[TID], record[TIME])


def _spec(followed: Followed, kernel: Kernel, layout_ids: Iterator[int]) -> ProbeSpec:
    """Plan the tracepoint itself: an eprobe on it would only copy its event."""
    target = Target(Kind.TRACEPOINT, system=followed.system, event=followed.event)
    attach = Attach(target, followed.fields, None, None)
    probe = Probe(followed.event, "", (attach,), aggregate="events")
    uncounted = replace(kernel, counts_tracepoints=False)
    for way in tracepoint_specs(probe, attach, set(followed.fields), uncounted, layout_ids, 1):
        if isinstance(way, ProbeSpec) and way.file is None:
            return replace(way, role="own")
    raise ProbeRefused(f"this kernel has no {target} that can be read.")
