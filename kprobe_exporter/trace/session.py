"""The trace's own place in the kernel: an instance of its own name, the threads it is about, its events."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kprobe_exporter.config.values import MAXACTIVE, Settings
from kprobe_exporter.errors import StartError
from kprobe_exporter.grammar.definition import LONGEST_NAME, Definition, ProbeKind
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.model.values import Layout, ProbeSpec
from kprobe_exporter.trace.asked import Asked, parse_asked
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.leftovers import acquire_for_trace, remove_dead_traces

LIVE_BUFFER = Settings().buffer_size
HELD_BUFFER = 8 * LIVE_BUFFER
"""Bytes a CPU for what is read as it comes, and for what waits in the kernel for the end."""

MOST_BUFFER = Settings().buffer_total

FILES = {ProbeKind.KPROBE: "kprobe_events", ProbeKind.UPROBE: "uprobe_events"}
"""Where a definition is written; all others go to dynamic_events."""


class Threads:
    """The threads to which the instance keeps: one, or those of a process, new ones as they are seen.

    They are in set_event_pid, which holds for every event of the instance before its filter.
    """

    def __init__(
        self, instance: Instance, pid: int | None, tid: int | None, proc: Path = Path("/proc")
    ) -> None:
        """Raises StartError if there is no such process or thread."""
        self._instance, self._pid, self._proc = instance, pid, proc
        self._known: set[int] = set()
        if tid is not None:
            if not (proc / str(tid)).exists():
                raise StartError(f"there is no thread {tid}.")
            self._add({tid})
        elif pid is not None:
            self.look()
            if not self._known:
                raise StartError(f"there is no process {pid}.")

    def look(self) -> None:
        """Look for threads that the process has started since."""
        if self._pid is None:
            return
        try:
            names = [path.name for path in (self._proc / str(self._pid) / "task").iterdir()]
        except OSError:  # it has ended
            return
        self._add(set(map(int, names)) - self._known)

    def _add(self, tids: set[int]) -> None:
        for some in batched(sorted(tids)):
            self._instance.write("set_event_pid", " ".join(map(str, some)) + "\n")
        self._known |= tids


def batched(numbers: list[int], most: int = 100) -> Iterator[list[int]]:
    """So few that they fit into one write to the kernel."""
    return (numbers[at : at + most] for at in range(0, len(numbers), most))


@contextmanager
def own_instance(files: Tracefs, *, held: bool = False, tgid: bool = False) -> Iterator[tuple[Instance, int]]:
    """An instance for this trace and the KiB of its buffer for a CPU; what it made goes at the end.

    ``held``: nothing is read before the end. ``tgid``: process ids are recorded as well. What killed
    traces left goes first. Raises TracefsError.
    """
    remove_dead_traces(files)
    with acquire_for_trace(files) as instance:
        cpus = max(1, len(files.names(f"{instance.path}/per_cpu")))
        kib = max(4, min(HELD_BUFFER if held else LIVE_BUFFER, MOST_BUFFER // cpus) // 1024)
        instance.set_up(kib, record_tgid=tgid)
        if instance.keep_own_threads_out():
            # We start no thread, and of a process that is asked for the children are another one.
            instance.write("options/event-fork", "0")
        instance.write("trace_clock", "mono")  # wipes the marker by which our own thread was found
        yield instance, kib


def text_specs(asked: Asked, filter_text: str | None) -> list[ProbeSpec]:
    """What is installed where the kernel's text is wanted: the definition as it stands.

    Of a call these are two events. The layouts say no more than the events' names.
    """
    definition, target = asked.definition, asked.target
    if definition is not None:
        return [_defined(definition, asked.name, filter_text)]
    assert target is not None
    if target.kind is Kind.TRACEPOINT:
        return [_tracepoint(target, filter_text)]
    enter, leave = target.halves
    if target.kind is Kind.SYSCALL:
        return [_tracepoint(half, filter_text) for half in (enter, leave)]
    halves = [parse_asked(str(half)) for half in (enter, leave)]
    names = (asked.name, f"{asked.name}_return"[-LONGEST_NAME:])
    return [
        _defined(half.definition, name, filter_text)
        for half, name in zip(halves, names, strict=True)
        if half.definition
    ]


def _defined(definition: Definition, name: str, filter_text: str | None) -> ProbeSpec:
    verb, _, body = definition.render().partition(" ")
    verb = verb.partition(":")[0]
    if definition.kind is ProbeKind.KPROBE and definition.returns and definition.maxactive is None:
        verb = f"r{MAXACTIVE}"  # by default, calls are missed when many threads wait in the function
    return ProbeSpec(
        probe=name,
        kind=definition.kind.name.lower(),
        target=str(definition.place),
        symbol=str(definition.place),
        file=FILES.get(definition.kind, "dynamic_events"),
        verb=verb,
        body=body,
        filter=filter_text,
        layout=Layout(0, name, name, "return" if definition.returns else "entry", str(definition.place)),
        role="own",
    )


def _tracepoint(target: Target, filter_text: str | None) -> ProbeSpec:
    return ProbeSpec(
        probe=target.event,
        kind=target.kind.value,
        target=str(target),
        symbol=target.event,
        file=None,
        verb="",
        body="",
        filter=filter_text,
        layout=Layout(0, target.event, target.event, "tracepoint", target.event),
        system=target.system,
        event=target.event,
        role="own",
    )
