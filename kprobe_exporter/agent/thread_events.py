"""Tracepoints about threads that the agent records for itself, and the identities that it learns by them."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from kprobe_exporter.aggregate.recipes import getter
from kprobe_exporter.aggregate.thread_names import Naming, ThreadNames
from kprobe_exporter.config.model import Config
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.command_lines import CommandLines
from kprobe_exporter.identity.pods import Pods, Whereabouts
from kprobe_exporter.identity.processes import Processes
from kprobe_exporter.identity.procfs import HOST_IDS, host_proc
from kprobe_exporter.identity.threads import living
from kprobe_exporter.model.aggregation import RecordFilter
from kprobe_exporter.model.joins import ThreadEvent
from kprobe_exporter.model.records import TID, TIME, VALUES, Layout, Record
from kprobe_exporter.model.specs import BY_THREAD, OF_EXIT, OF_PROCESS, OF_PROGRAM, OF_THREAD, LabelSpec
from kprobe_exporter.model.values import Value
from kprobe_exporter.plan import Kernel, wants_tgid
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.probing.thread_tracepoints import (
    CGROUP_EVENTS,
    EXEC,
    EXIT,
    EXIT_EVENTS,
    NEW,
    PROCESS_EVENTS,
    UNKNOWN_CODES,
    Followed,
    Handle,
    OwnTracepoints,
)
from kprobe_exporter.tracefs.instance import Instance

log = logging.getLogger(__name__)

PODS = Path("/var/log/pods")
"""If this directory exists, exported events get attributes of their container and pod."""


NAMED = NEW._replace(fields={"named": "pid", "name": "comm"})
RENAMED = Followed("task", "task_rename", {"named": "pid", "name": "newcomm"})

NAME_EVENTS = (NAMED, RENAMED)
THREAD_EVENTS = (NEW, EXEC, EXIT)

ENDS_OF_CALLS: Mapping[str, ThreadEvent] = {
    NEW.event: ThreadEvent("started", ("child", "flags")),
    EXEC.event: ThreadEvent("executed", ("old",)),
    EXIT.event: ThreadEvent("exited"),
}
"""The fields of the tracepoints about threads that a source needs to join calls itself."""


def looked_up(config: Config) -> list[str]:
    """Return what the agent looks up in /proc for a configuration: labels, then other things."""
    labels = [label for probe in config.probes for label in probe.labels]
    decoders = BY_THREAD | {OF_PROGRAM}
    found = sorted({label.name for label in labels if label.decode and label.decode[0].name in decoders})
    if any(probe.stacks is not None and probe.stacks.user for probe in config.probes):
        found.append("stacks of programs")
    if any(probe.within is not None for probe in config.probes):
        found.append("containers to probe")
    if any(attach.of_time for probe in config.probes for attach in probe.attach):
        found.append("the time before a thread's first event")
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
    """The cgroups, pods and processes of threads, and their ends. The reader's thread owns it while it runs.

    Threads are tracked only while the configuration needs it. The thread that holds the change lock calls
    ``configure`` and ``follow``, before the reader knows of the change. With ``nested`` a container in a
    container counts. ``notice`` is a sentence about the things that stay unknown in this PID namespace.
    """

    def __init__(self, *, nested: bool) -> None:
        self.nested = nested
        self.pods = Pods()
        self.cgroups = Cgroups()
        self.cgroup_events = OwnTracepoints(
            CGROUP_EVENTS, "cgroups are looked up in /proc only", self._read_cgroups, before_probes=True
        )
        self.thread_events = OwnTracepoints(THREAD_EVENTS, "calls stay open when their thread ends")
        self.process_events = OwnTracepoints((NEW,), "processes of threads that have ended may be unknown")
        self.processes = Processes(read_argv=CommandLines())
        self.fact_events = OwnTracepoints(
            PROCESS_EVENTS,
            "facts of processes are looked up in /proc only",
            self._read_processes,
            before_probes=True,
        )
        self.exit_events = OwnTracepoints(EXIT_EVENTS, UNKNOWN_CODES)
        self.names = ThreadNames()
        self.name_events = OwnTracepoints(
            NAME_EVENTS, "names of threads are looked up in /proc only", self._read_names
        )
        self.tracepoints = (
            self.cgroup_events,
            self.thread_events,
            self.process_events,
            self.fact_events,
            self.exit_events,
            self.name_events,
        )
        self.notice = ""
        self._exported = False
        self.whereabouts = Whereabouts(self.cgroups, self.pods, nested=nested)

    def configure(self, config: Config) -> None:
        """Take from the configuration what is needed from now on."""
        labels = (label for probe in config.probes for label in probe.labels)
        decoders = {label.decode[0].name for label in labels if label.decode}
        exported = config.exports is not None and any(probe.export is not None for probe in config.probes)
        self._exported = exported and PODS.is_dir()
        self._check_ids(looked_up(config))
        self.cgroup_events.wanted = self._exported or bool(OF_THREAD & decoders)
        self.processes.wanted = OF_PROCESS & decoders
        self.fact_events.wanted = bool(self.processes.wanted)
        self.exit_events.wanted = bool(OF_EXIT & decoders)
        self.process_events.wanted = wants_tgid(probe for probe in config.probes if probe.enabled)
        self.thread_events.wanted = any(
            attach.end is not None for probe in config.probes for attach in probe.attach
        )

    def moves(self, attachments: Iterable[Attached]) -> bool:
        """Return whether a probe must be attached anew, to come after the events that ``follow`` installs."""
        coming = self.fact_events.coming | self.cgroup_events.coming
        return any(part.spec.target in coming for one in attachments for part in one.parts)

    def _check_ids(self, needed: list[str]) -> None:
        """Report the things for which this process would need the host's thread ids, once."""
        before, self.notice = self.notice, ""
        if needed and host_proc() is None:
            why = "events have the host's thread ids, and /proc here has those of another PID namespace"
            self.notice = f"unknown for most threads: {', '.join(needed)}, because {why}. {HOST_IDS}."
        if self.notice not in ("", before):
            log.warning("%s", self.notice)

    @property
    def attributes(self) -> Callable[[int, int], Mapping[str, str] | None]:
        """Looks up the container, the pod and the noted facts of a thread at an event."""
        return self.whereabouts.take

    def note(self, layout: Layout, attributes: Iterable[LabelSpec]) -> Handle | None:
        """Return the function that notes the container of a record's thread, and facts of processes.

        Call it in the stream's order. None if nothing is to be noted.
        """
        facts = [(label, getter(layout, label.field)) for label in attributes if label.first in OF_PROCESS]
        if not facts:
            return self.whereabouts.note if self._exported else None

        def note(record: Record) -> None:
            if self._exported:
                self.whereabouts.note(record)
            texts = {label.name: self._text(label, tid(record), record[TIME]) for label, tid in facts}
            self.whereabouts.add(record, {name: text for name, text in texts.items() if text is not None})

        return note

    def _text(self, label: LabelSpec, tid: Value, time_ns: int) -> str | None:
        value = self.processes.fact(label.first, tid, time_ns) if isinstance(tid, int) else None
        for _, decode in label.decoders:
            text = None if value is None else decode(value)
            value = None if text is None else text.encode()
        return value.decode() if isinstance(value, bytes) else None

    def follow(self, instance: Instance, kernel: Kernel, layout_ids: Iterator[int]) -> None:
        """Install the tracepoints if the configuration needs them, or disable them.

        If they cannot be installed, the agent reads cgroups from /proc only. A call whose thread ends then
        stays open until a later call of the same thread id takes its place. Processes of short-lived threads
        are searched for in saved_tgids.
        """
        for own in (self.thread_events, self.process_events, self.fact_events):
            reason = own.follow(instance, kernel, layout_ids)
            if reason is not None and kernel.binary:
                log.info("%s%s", own.without, reason)
        for own in (self.exit_events, self.cgroup_events):
            if (reason := own.follow(instance, kernel, layout_ids)) is not None:
                log.warning("%s%s", own.without, reason)

    def follow_names(
        self, layouts: Iterable[Layout], instance: Instance, kernel: Kernel, layout_ids: Iterator[int]
    ) -> None:
        """Do the same for names, which are needed if the events of one of these layouts do not hold them."""
        self.name_events.wanted = any(comm_places(layout) for layout in layouts)
        if (reason := self.name_events.follow(instance, kernel, layout_ids)) is not None and kernel.binary:
            log.warning("%s%s", self.name_events.without, reason)

    def _read_names(self) -> None:
        self.names.begin(living())

    def _read_processes(self) -> None:
        """Forget what was known, and read all processes from /proc."""
        self.processes.lost()
        self.processes.scan()

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
