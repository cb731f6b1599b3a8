"""A trace: its own trace instance in the kernel, kept to a scope, and its events."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.config.model import MAXACTIVE, Settings
from kprobe_exporter.elf import locate_usdt
from kprobe_exporter.errors import GrammarError, UsageError, sentence
from kprobe_exporter.grammar.definition import LONGEST_NAME, Definition, ProbeKind
from kprobe_exporter.grammar.event_format import parse_format
from kprobe_exporter.grammar.expression import FetchSite
from kprobe_exporter.grammar.fetch import parse_fetch
from kprobe_exporter.grammar.filter import in_kernels_words, parse_filter
from kprobe_exporter.grammar.place import EventName
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.identity.procfs import INITIAL, namespace
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.usdt import usdt_spec
from kprobe_exporter.probing.scope import OF_EVENTS, Scope, ScopedThreads, ThreadLists
from kprobe_exporter.trace.command import Command, started
from kprobe_exporter.trace.emit import configuration, read_back
from kprobe_exporter.trace.output import Output
from kprobe_exporter.trace.request import TraceRequest, parse_request
from kprobe_exporter.trace.resolve import located
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.leftovers import acquire_for_trace, remove_dead_traces
from kprobe_exporter.tracefs.removal import Removal
from kprobe_exporter.tracefs.thread_ids import HostIds
from kprobe_exporter.util.progress import progress
from kprobe_exporter.util.rooted_path import ProbedFiles

LIVE_BUFFER = Settings().buffer_size
HELD_BUFFER = 8 * LIVE_BUFFER
"""Bytes of buffer per CPU: for events read as they come, and for events held until the end."""

MOST_BUFFER = Settings().buffer_total

REDRAW = 1.0
"""Seconds from one message of a long removal to the next."""

FILES = {ProbeKind.KPROBE: "kprobe_events", ProbeKind.UPROBE: "uprobe_events"}
"""The file for a definition of this kind; all other kinds go to dynamic_events."""


class TraceSession(NamedTuple):
    """A trace in its instance, with ``buffer_kib`` per CPU.

    It ends after ``seconds``, with its ``command``, or by Ctrl-C. ``warn`` is called with a sentence for the
    user.
    """

    instance: Instance
    buffer_kib: int
    threads: ScopedThreads
    command: Command | None
    out: Output
    seconds: float | None
    warn: Callable[[str], None]

    def begin(self) -> None:
        """Let the command begin: call this once the events are enabled."""
        if self.command is not None:
            self.command.run()

    def look(self) -> None:
        """Follow the threads of the scope, and end the session with its command: call this all the time."""
        self.threads.look()
        if self.command is not None and self.command.has_ended():
            self.out.stop.set()


@contextmanager
def own_instance(
    files: Tracefs,
    probed_files: ProbedFiles,
    *,
    buffer_size: int,
    tgid: bool,
    gives_up: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Instance, int]]:
    """Yield an instance for this trace and its buffer's KiB per CPU; remove it and its probes on exit.

    ``buffer_size`` is wanted per CPU, in bytes. ``tgid``: process ids are recorded as well. Leftovers of
    killed traces are removed first. The probes of a file use the descriptors of ``probed_files``. A removal
    of many probes shows its progress, and leaves the rest to ``cleanup`` if the caller ``gives_up``. Raises
    TracefsError.
    """
    remove_dead_traces(files)
    with progress() as tell, acquire_for_trace(files, Removal(tell, gives_up, REDRAW)) as instance:
        instance.probed_files = probed_files
        cpus = max(1, len(files.names(f"{instance.path}/per_cpu")))
        kib = max(4, min(buffer_size, MOST_BUFFER // cpus) // 1024)
        instance.set_up(kib, record_tgid=tgid)
        instance.exclude_own_thread()  # the only one: a trace starts none
        instance.write("trace_clock", "mono")  # wipes the marker that told this thread's id
        yield instance, kib


@contextmanager
def _scoped(
    instance: Instance, scope: Scope, note: Callable[[str], None], lists: ThreadLists
) -> Iterator[tuple[ScopedThreads, Command | None]]:
    """Keep the instance to a scope; start its command, and end it on exit.

    ``note`` is called with sentences for the user.
    """
    with started(scope.command, note) as command, _host_ids(instance.files, needed=scope.narrows) as ids:
        if command is not None:
            scope = scope._replace(pid=command.pid, children=True)
        threads = ScopedThreads(instance, scope, ids, lists=lists)
        own = scope.tid or scope.pid or 0
        if command is None and (host := threads.translated.get(own)) is not None:
            note(f"events have the host's thread ids, in which {own} is {host}.")
        yield threads, command


@contextmanager
def _host_ids(files: Tracefs, *, needed: bool) -> Iterator[HostIds | None]:
    """Yield the translation of thread ids in another PID namespace than the host's; None if none is needed.

    It has an instance of its own, because that of the trace does not record this process. Raises
    TracefsError.
    """
    if not needed or namespace(Path("/proc"), "pid") == INITIAL:
        yield None
        return
    with acquire_for_trace(files) as instance:
        yield HostIds(instance)


@contextmanager
def trace_session(
    files: Tracefs,
    probed_files: ProbedFiles,
    scope: Scope,
    out: Output,
    seconds: float | None,
    tell: Callable[[str], None],
    *,
    buffer_size: int = LIVE_BUFFER,
    tgid: bool,
    lists: ThreadLists = OF_EVENTS,
) -> Iterator[TraceSession]:
    """Yield a session in an instance of its own, limited to the threads of ``scope``; remove it on exit.

    ``lists`` are those that limit what is recorded: events, or functions by a tracer.

    The scope's command is started, but does not run until the session begins; it is ended on exit. ``tell``
    is called with notes and warnings for the user. Raises TracefsError, StartError and UsageError.
    """
    with (
        own_instance(
            files, probed_files, buffer_size=buffer_size, tgid=tgid, gives_up=lambda: out.stop.gives_up
        ) as (instance, kib),
        _scoped(instance, scope, lambda note: tell(f"note: {note}"), lists) as (threads, command),
    ):
        yield TraceSession(instance, kib, threads, command, out, seconds, lambda why: tell(f"warning: {why}"))


def text_specs(
    request: TraceRequest,
    filter_text: str | None,
    probed_files: ProbedFiles | None = None,
    event_format: Callable[[str, str], str | None] = lambda system, event: None,
) -> list[ProbeSpec]:
    """Return the events to install for the kernel's text: the definition as it stands.

    A call has two events. The layouts name the events, and describe no arguments. ``event_format`` returns
    the format of a tracepoint. Raises UsageError.
    """
    definition, target = request.definition, request.target
    if filter_text is not None:
        with suppress(GrammarError):  # the kernel says why it refuses it
            filter_text = in_kernels_words(filter_text)
    if definition is not None:
        definition = _fetching_compared(definition, filter_text, event_format)
        return [_defined(definition, request.name, filter_text)]
    assert target is not None
    if target.kind is Kind.TRACEPOINT:
        return [_tracepoint(target, filter_text)]
    if target.kind is Kind.USDT:
        return [_usdt(request, filter_text, probed_files)]
    enter, leave = target.halves
    if target.kind is Kind.SYSCALL:
        return [_tracepoint(half, filter_text) for half in (enter, leave)]
    halves = [located(parse_request(str(half)), probed_files) for half in (enter, leave)]
    names = (request.name, f"{request.name}_return"[-LONGEST_NAME:])
    named = zip(halves, names, strict=True)
    return [_defined(half.definition, name, filter_text) for half, name in named if half.definition]


def _defined(definition: Definition, name: str, filter_text: str | None) -> ProbeSpec:
    verb, _, body = definition.render().partition(" ")
    verb = verb.partition(":")[0]
    if definition.kind is ProbeKind.KPROBE and definition.returns and definition.maxactive is None:
        verb = f"r{MAXACTIVE}"  # the default misses calls while many threads wait in the function
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


def _fetching_compared(
    definition: Definition, filter_text: str | None, event_format: Callable[[str, str], str | None]
) -> Definition:
    """Return an eprobe that also fetches the fields of its tracepoint that the filter names.

    Otherwise ``comm`` and ``cpu`` would be those of the thread, as in the filters of other events.
    """
    place = definition.place
    text = event_format(place.system, place.event) if isinstance(place, EventName) else None
    if text is None or filter_text is None or definition.kind is not ProbeKind.EPROBE:
        return definition
    try:
        fields, named = parse_format(text).fields, parse_filter(filter_text).fields
    except GrammarError:
        return definition
    others = sorted(named - {arg.name for arg in definition.args})
    kinds = {name: fields[name].fetch_type for name in others if name in fields}
    args = [
        parse_fetch(f"${name}:{kind}", FetchSite("event"), name=name) for name, kind in kinds.items() if kind
    ]
    return replace(definition, args=(*definition.args, *args))


def _usdt(request: TraceRequest, filter_text: str | None, probed_files: ProbedFiles | None) -> ProbeSpec:
    [probe] = read_back(configuration(request, filter_text, stacks=False)).probes
    kernel = Kernel(
        lambda system, event: None,
        counts_tracepoints=False,
        locate_usdt=partial(locate_usdt, files=probed_files),
    )
    spec = usdt_spec(probe, probe.attach[0], set(), kernel, 0, 1)
    if isinstance(spec, Unsupported):
        raise UsageError(sentence(spec.reason))
    return replace(spec, plan="events", role="own")


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
