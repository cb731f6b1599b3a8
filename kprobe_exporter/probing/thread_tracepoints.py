"""Tracepoints about threads that a program records for itself, in a second instance."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.errors import ProbeRefused, TracefsError
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.processes import Processes
from kprobe_exporter.model.joins import ThreadEvent
from kprobe_exporter.model.records import TID, TIME, Layout, Record
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.function import function_spec
from kprobe_exporter.plan.tracepoint import tracepoint_specs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed, install, names_in_use

Handle: TypeAlias = Callable[[Record], None]


class Followed(NamedTuple):
    """A tracepoint about threads, or a function of the kernel if ``system`` is empty.

    ``fields`` maps our names to the kernel's fields, or to fetch arguments.
    """

    system: str
    event: str
    fields: Mapping[str, str] = {}

    @property
    def target(self) -> str:
        """It as a probe attaches to it."""
        return str(self.parsed)

    @property
    def parsed(self) -> Target:
        if not self.system:
            return Target(Kind.KPROBE, symbol=self.event)
        return Target(Kind.TRACEPOINT, system=self.system, event=self.event)


STARTED = Followed("task", "task_newtask", {"child": "pid", "flags": "clone_flags", "name": "comm"})
EXECUTED = Followed("sched", "sched_process_exec", {"path": "filename", "old": "old_pid"})

# Not sched_process_fork: only this one has the flags, for threads and for a cgroup named by clone3().
NEW = STARTED._replace(fields={"child": "pid", "flags": "clone_flags"})
MOVE = Followed(
    "cgroup", "cgroup_attach_task", {"leader": "pid", "hierarchy": "dst_root", "path": "dst_path"}
)
EXEC = EXECUTED._replace(fields={"old": "old_pid"})
EXIT = Followed("sched", "sched_process_exit")
EXITING = Followed("", "do_exit", {"code": "$arg1:s32"})
"""The function of kernel/exit.c with which each thread ends. Up to Linux 7.2 no tracepoint has its code."""

PROCESS_EVENTS = (STARTED, EXECUTED)
"""The tracepoints from which `Processes` learns."""

CGROUP_EVENTS = (NEW, MOVE, EXEC, EXIT)
"""Those from which `Cgroups` learns."""

EXIT_EVENTS = (EXITING,)
"""Those from which `Processes` learns how threads end."""

BEFORE_PROBES = frozenset({STARTED.event, EXECUTED.event, MOVE.event})
"""The tracepoints that change what is known of a thread. A probe at one of them needs what it changes."""

UNKNOWN_CODES = "exit codes of processes are unknown"
"""The clause that says what lacks without EXIT_EVENTS."""

CHANGES_OF_THREADS: Mapping[str, ThreadEvent] = {
    NEW.event: ThreadEvent("placed", ("child",)),
    MOVE.event: ThreadEvent("moved"),
    EXEC.event: ThreadEvent("moved", ("old",)),
    EXITING.event: ThreadEvent("placed", ("common_pid",)),
}
"""The fields that a source needs to add up by cgroup or by a process's fact. A thread that has exited keeps
both."""


@dataclass(eq=False)
class OwnTracepoints:
    """Tracepoints that are installed together while they are ``wanted``, without definitions.

    They are in a second instance, and need pages: in text, an unprivileged user could forge these events by a
    file's name. ``without`` says what the agent does without them. The reader's thread calls ``begin`` when
    recording has begun. The records of BEFORE_PROBES come before those of probes that are installed after
    ``follow``, if ``before_probes``.
    """

    _followed: Sequence[Followed]
    without: str
    begin: Callable[[], None] = lambda: None
    before_probes: bool = False
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
                spec = _spec(one, kernel, layout_ids)
                taken = names_in_use(threads) if spec.file is not None else set()
                self.parts += (install(threads, spec, taken),)
                if self.before_probes and one.event in BEFORE_PROBES:
                    self.parts[-1].register()  # a trigger costs a wait of the kernel when it is removed
        except (ProbeRefused, TracefsError) as error:
            self.disable()
            return f": {error}"
        except BaseException:
            self.disable()
            raise
        return None

    @property
    def coming(self) -> set[str]:
        """The targets at which ``follow`` will come before later probes, if it has not yet."""
        if not (self.wanted and self.before_probes) or self.parts:
            return set()
        return {one.target for one in self._followed if one.event in BEFORE_PROBES}

    def enable(self) -> None:
        """Start recording; call ``begin`` afterwards. Raises ProbeRefused."""
        for part in self.parts:
            part.enable()
        self.enabled = True

    def disable(self) -> None:
        """Stop recording, and forget what is installed. Never raises."""
        for part in self.parts:
            part.remove()
        self.parts, self.enabled = (), False


class FollowsThreads(Protocol):
    """Something that learns of the starts and the ends of threads, in time order."""

    def started(self, parent: int, child: int, clone_flags: int, time_ns: int, /) -> None: ...
    def executed(self, old_tid: int, tid: int, /) -> None: ...
    def exited(self, tid: int, time_ns: int, /) -> None: ...


def process_handlers(own: OwnTracepoints, processes: Processes) -> Mapping[Layout, Callable[[Record], None]]:
    """Return the functions that pass the records on to ``processes``, in time order.

    They are those of PROCESS_EVENTS or of EXIT_EVENTS.
    """
    return {part.layout: _process_handler(_event(part), part.layout, processes) for part in own.parts}


def _process_handler(event: str, layout: Layout, processes: Processes) -> Callable[[Record], None]:
    if event == STARTED.event:
        child, flags, name = map(layout.index, ("child", "flags", "name"))
        start = processes.started
        return lambda record: start(record[TID], record[child], record[flags], record[TIME], record[name])
    if event == EXITING.event:
        code = layout.index("code")
        return lambda record: processes.exiting(record[TID], record[TIME], record[code])
    path, old = layout.index("path"), layout.index("old")
    return lambda record: processes.executed(record[old], record[TID], record[TIME], record[path])


def thread_events(own: OwnTracepoints, wanted: Mapping[str, ThreadEvent]) -> dict[int, ThreadEvent]:
    """Return, by layout_id, what a source takes from those that are installed."""
    events = {part.layout.layout_id: wanted.get(_event(part)) for part in own.parts}
    return {layout_id: event for layout_id, event in events.items() if event is not None}


def _event(part: Installed) -> str:
    """Return the name of a tracepoint or a function. The event of a function may have another name."""
    return part.layout.symbol if part.layout.form == "entry" else part.event


def handlers(own: OwnTracepoints, threads: FollowsThreads) -> Mapping[Layout, Handle]:
    """Return the functions that pass the records of what is installed on to ``threads``, in time order."""
    return {part.layout: _handler(part.event, part.layout, threads) for part in own.parts}


def _handler(event: str, layout: Layout, threads: FollowsThreads) -> Handle:
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
    """Plan the tracepoint itself, because an eprobe on it would only copy its event; or the function."""
    target = followed.parsed
    attach = Attach(target, followed.fields, None, None)
    probe = Probe(followed.event, "", (attach,), aggregate="events")
    uncounted = replace(kernel, counts_tracepoints=False)
    if target.kind is Kind.KPROBE:
        found = function_spec(probe, attach, set(followed.fields), uncounted, next(layout_ids), 1)
        if isinstance(found, ProbeSpec):
            return replace(found, role="own")
        raise ProbeRefused(found.reason)
    for way in tracepoint_specs(probe, attach, set(followed.fields), uncounted, layout_ids, 1):
        if isinstance(way, ProbeSpec) and way.file is None:
            return replace(way, role="own")
    raise ProbeRefused(f"this kernel has no {target} that can be read.")
