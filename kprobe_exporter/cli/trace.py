"""``trace``: traces one definition at the command line, as perf-tools' ``kprobe`` does."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from kprobe_exporter.cli.completion import complete_definitions
from kprobe_exporter.cli.options import Seconds, config_option, kernel_errors, tell, tracefs_option
from kprobe_exporter.cli.scope import scope_options
from kprobe_exporter.errors import GrammarError, TracefsError, UsageError, one_line
from kprobe_exporter.grammar.lexis import NAME
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.probing.scope import Scope
from kprobe_exporter.service import logs
from kprobe_exporter.symbols.resolve import tracepoint_named
from kprobe_exporter.trace.capture import each_event
from kprobe_exporter.trace.count_stacks import count_stacks, loss_sentences, write_profile
from kprobe_exporter.trace.emit import configuration, read_back
from kprobe_exporter.trace.loops import show_counts, write_events, write_lines
from kprobe_exporter.trace.objects import show_object, show_text
from kprobe_exporter.trace.output import Interrupt, Output
from kprobe_exporter.trace.request import TraceRequest, parse_request
from kprobe_exporter.trace.resolve import resolve
from kprobe_exporter.trace.save_pages import save_pages
from kprobe_exporter.trace.session import HELD_BUFFER, LIVE_BUFFER, TraceSession, text_specs, trace_session
from kprobe_exporter.trace.text import show_format
from kprobe_exporter.trace.text import trace as trace_text
from kprobe_exporter.trace.timeline import write_timeline
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.mount import mounted
from kprobe_exporter.util.rooted_path import ProbedFiles


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The values of the command line's options, by their parameter names in click."""

    force: bool
    seconds: float | None
    headers: bool
    scope: Scope
    stacks: bool
    user_stacks: bool
    view: bool
    as_json: bool
    count: bool
    by: tuple[str, ...]
    folded: bool
    flame: Path | None
    trace_dat: Path | None
    perfetto: Path | None
    marks: bool
    emit: bool
    paths: tuple[Path, ...]
    tracefs: Path | None

    @property
    def profiles(self) -> bool:
        """Whether stacks are counted."""
        return self.folded or self.flame is not None

    @property
    def records(self) -> bool:
        """Whether each event becomes an object."""
        return self.as_json or self.perfetto is not None

    @property
    def planned(self) -> bool:
        """Whether events are collected as the agent does, instead of printed as the kernel's text."""
        return self.records or self.count or self.profiles

    @property
    def as_kernel(self) -> bool:
        """Whether both events of a call are wanted as the kernel has them."""
        return self.view or self.stacks or self.trace_dat is not None


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter trace p:do_sys_openat2                     # entries of open()
  kprobe-exporter trace 'r:do_sys_openat2 $retval'           # what it returns
  kprobe-exporter trace 'r:myopen do_sys_openat2 rval=$retval:s32' 'rval < 0'
  kprobe-exporter trace 'p:myopen do_sys_openat2 filename=+0(%si):string' 'filename ~ "*stat"'
  kprobe-exporter trace -s 'p:myprobe tcp_retransmit_skb'    # with kernel stacks
  kprobe-exporter trace -d 10 p:vfs_fsync_range > out        # buffered in the kernel
  kprobe-exporter trace sched:sched_process_exec             # a tracepoint
  kprobe-exporter trace 'r:/bin/bash:readline line=+0($retval):string'
  kprobe-exporter trace 'syscall:openat file=filename:string' 'return < 0'
  kprobe-exporter trace 'call:vfs_read count' 'duration > 10ms'  # slow reads
  kprobe-exporter trace --count --by comm call:vfs_read      # a live table, with durations and programs
  kprobe-exporter trace --flame out.svg -d 10 kprobe:vfs_fsync_range  # who calls it
  kprobe-exporter trace -u --folded call:vfs_fsync_range     # from the program on, by time
  kprobe-exporter trace -c 'make -j2' sched:sched_process_exec  # all that a command starts
  kprobe-exporter trace --count --pod 'db*' --comm postgres call:vfs_fsync_range
  kprobe-exporter trace --json r:do_sys_openat2 | jq 'select(.error)'
  kprobe-exporter trace --config probes.yaml                 # all probes of a configuration
""",
)
@click.option("-F", "--force", is_flag=True, help="Trace despite warnings.")
@click.option(
    "-d",
    "--duration",
    "seconds",
    type=Seconds(),
    metavar="SECS",
    help="Trace for so long; the text is buffered in the kernel and written at the end.",
)
@scope_options()
@click.option("-v", "--view", is_flag=True, help="Print the event's format, and do not trace.")
@click.option("-H", "--headers", is_flag=True, help="Print the header of the columns.")
@click.option("-s", "--stacks", is_flag=True, help="Print the kernel stack after each event.")
@click.option(
    "-u",
    "--user-stacks",
    is_flag=True,
    help="With --folded or --flame: also the program's functions. With text or --json: the program's stack.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object an event, times in nanoseconds.")
@click.option("--count", is_flag=True, help="A live table: hits a second, errors, and a histogram.")
@click.option(
    "--by",
    multiple=True,
    metavar="FIELD[:DECODER]",
    help="With --count: also the events by this field, as --by comm or --by return:errno; may be repeated.",
)
@click.option(
    "--folded", is_flag=True, help="Count stacks, at the end as folded text; of a call, by its time."
)
@click.option(
    "--flame",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="The same as a flame graph, an SVG that browsers show.",
)
@click.option(
    "--trace-dat",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Record into a trace.dat, which trace-cmd report and KernelShark read.",
)
@click.option(
    "--perfetto",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write a timeline, which ui.perfetto.dev shows: calls and pairs as slices; - is stdout.",
)
@click.option("--marks", is_flag=True, help="With --perfetto: also the marks that programs write.")
@click.option("--emit-config", "emit", is_flag=True, help="Print the YAML with which the agent does this.")
@config_option("Trace the probes of a configuration instead, with --json as objects.")
@tracefs_option
@click.argument("definition", shell_complete=complete_definitions, required=False)
@click.argument("filter_text", metavar="[FILTER]", required=False)
def trace(definition: str | None, filter_text: str | None, **given: object) -> None:
    """Trace DEFINITION until Ctrl-C, and leave the kernel as it was.

    DEFINITION is a line of the kernel's kprobe_events, as 'r:myopen do_sys_openat2 rval=$retval'; of
    'p:FUNCTION' the function is the event's name as well. An attach string does as well:
    uprobe:PATH:FUNCTION, tracepoint:SYSTEM:EVENT or only SYSTEM:EVENT, call:FUNCTION. FILTER is the
    kernel's, on the event's fields, which -v shows; of a call it may also name duration and return.
    """
    options = TraceOptions(**given)  # type: ignore[arg-type]
    if options.paths or definition is None:
        _trace_configured(definition, options)
        return
    request = _parsed(definition, options.tracefs)
    _check(request, options, filter_text)
    if options.emit:
        command = ["kprobe-exporter", "trace", *(["-s"] if options.stacks else []), definition]
        command += [filter_text] if filter_text is not None else []
        text = configuration(request, filter_text, stacks=options.stacks, command=command)
        for warning in read_back(text).warnings:
            _warn(warning.partition("warning: ")[2])
        click.echo(text, nl=False)
        return
    with tracing(options.tracefs) as (files, probed_files, out):
        _trace(files, probed_files, request, filter_text, options, out)


@contextmanager
def tracing(
    tracefs: Path | None, *, verbose: bool = False
) -> Iterator[tuple[MountedTracefs, ProbedFiles, Output]]:
    """Yield what every trace needs: the mounted tracefs, the files of programs, and stdout.

    Signals end the trace, and a KprobeExporterError says what went wrong.
    """
    with Interrupt().heeded() as stop, kernel_errors():
        logs.set_up("info" if verbose else "warning", "text")
        out = Output(sys.stdout.fileno(), stop, terminal=sys.stdout.isatty())
        with mounted(tracefs) as root, closing(ProbedFiles()) as probed_files:
            yield MountedTracefs(root), probed_files, out


def _trace_configured(definition: str | None, options: TraceOptions) -> None:
    """Trace all probes of a configuration."""
    from kprobe_exporter.config.load import load  # noqa: PLC0415 - a trace of a definition needs none

    if definition is not None or not options.paths:
        raise UsageError("a trace has a DEFINITION or --config FILE: give one of them.")
    _refuse_idle(
        "--config",
        {
            "-F": options.force,
            "-v": options.view,
            "-H": options.headers,
            "-u": options.user_stacks and (options.stacks or options.count),
            "--by": bool(options.by),
            "--folded or --flame": options.profiles,
            "--trace-dat": options.trace_dat is not None,
            "--perfetto or --marks": options.perfetto is not None or options.marks,
            "--emit-config": options.emit,
        },
    )
    config = load(options.paths, DECODERS)
    probes = [probe for probe in config.probes if probe.enabled]
    scope, seconds = options.scope, options.seconds
    with (
        tracing(options.tracefs) as (files, probed_files, out),
        trace_session(files, probed_files, scope, out, seconds, tell, tgid=not options.count) as session,
    ):
        if options.count:
            each = scope.narrows
            show_counts(session, probes, ", ".join(config.files), narrowed=each, each=each)
            return
        show = show_object if options.as_json else show_text
        lost = write_events(session, probes, show, stacks=options.stacks, user_stacks=options.user_stacks)
    tell_lost(lost, "use -p, or a filter in the configuration, to record less")


def _trace(
    files: MountedTracefs,
    probed_files: ProbedFiles,
    request: TraceRequest,
    filter_text: str | None,
    options: TraceOptions,
    out: Output,
) -> None:
    found = resolve(request, files, probed_files=probed_files)
    translated = request.definition.warnings if request.definition else ()
    for note in (*(f"{warning}." for warning in translated), *found.notes):
        tell(f"note: {note}")
    for warning in (*found.warnings, *([found.refused] if found.refused else [])):
        _warn(warning)
    if found.refused and not options.force:
        raise TracefsError("not traced because of the warning: give -F to try it all the same.")
    request = found.request
    as_call = request.is_call and not (options.planned or options.as_kernel)
    held = options.seconds is not None and not (options.planned or as_call or options.trace_dat is not None)
    each = options.scope.narrows
    size = HELD_BUFFER if held else LIVE_BUFFER
    with trace_session(
        files, probed_files, options.scope, out, options.seconds, tell, buffer_size=size, tgid=options.records
    ) as session:
        lost = 0
        if options.planned or as_call:
            by = options.by if options.count else None
            probes = read_back(configuration(request, filter_text, stacks=False, by=by)).probes
            if options.as_json:
                lost = write_events(
                    session, probes, show_object, stacks=options.stacks, user_stacks=options.user_stacks
                )
            elif as_call:
                lost = write_lines(session, probes, request.title, header=options.headers)
            elif options.perfetto is not None:
                wanted = [each_event(probe, stacks=False) for probe in probes]
                told = partial(tell_marks, files.root) if options.marks else None
                lost = write_timeline(session, wanted, options.perfetto, all_fields=True, marks=told)
            elif options.profiles:
                profile = count_stacks(session, probes, request.title, each=each, user=options.user_stacks)
                tell(write_profile(profile, out, folded_text=options.folded, flame=options.flame))
                for why in loss_sentences(profile):
                    session.warn(why)
            else:
                title = f"{request.title}{f' if {filter_text}' if filter_text else ''}"
                narrowed = each or filter_text is not None
                show_counts(session, probes, title, narrowed=narrowed, each=each)
        else:
            lost = _trace_text(session, probed_files, request, filter_text, options)
    tell_lost(lost, "use a filter, -p or --count to record less")


def tell_lost(lost: int, remedy: str) -> None:
    """Tell how many events were lost, if any, and what to do."""
    if lost:
        _warn(f"{lost:,} events were lost because the ring buffer was full: {remedy}.")


def tell_marks(tracefs: Path, file: str) -> None:
    """Tell to which file programs write their marks."""
    tell(f"note: programs write their marks to {tracefs / file}.")


def _trace_text(
    session: TraceSession,
    probed_files: ProbedFiles,
    request: TraceRequest,
    filter_text: str | None,
    options: TraceOptions,
) -> int:
    """Trace the events as the kernel has them; return the number of lost events."""
    specs = text_specs(request, filter_text, probed_files, session.instance.event_format)
    title, stacks = request.title, options.stacks
    if options.view:
        show_format(session.instance, specs, session.out)
        return 0
    if options.trace_dat is not None:
        return save_pages(session, specs, options.trace_dat, title, stacks=stacks)
    return trace_text(
        session,
        specs,
        title,
        header=options.headers,
        stacks=stacks,
        user_stacks=options.user_stacks,
    )


def _parsed(definition: str, tracefs: Path | None) -> TraceRequest:
    try:
        return parse_request(definition)
    except GrammarError as error:
        text, at = error.text or definition, error.column
        with suppress(TracefsError, OSError), mounted(tracefs) as root:
            if NAME.fullmatch(definition) and (there := tracepoint_named(MountedTracefs(root), definition)):
                raise UsageError(f"'{definition}' is a tracepoint: write {there}.") from None
        raise UsageError(f"{error.message}, at ^ in '{text[:at]}^{text[at:]}'.") from None


def _check(request: TraceRequest, options: TraceOptions, filter_text: str | None) -> None:
    """Refuse options that do not go together."""
    ways = {
        "-v": options.view,
        "--json": options.as_json,
        "--count": options.count,
        "--emit-config": options.emit,
        "--folded or --flame": options.profiles,
        "--trace-dat": options.trace_dat is not None,
        "--perfetto": options.perfetto is not None,
    }
    chosen = [name for name, given in ways.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} do not go together: give one of them.")
    way = chosen[0] if chosen else ""
    records_nothing = way in ("-v", "--emit-config")
    idle = {
        "-d": options.seconds is not None and records_nothing,
        "a scope": options.scope.narrows and records_nothing,
        "-H": options.headers and way != "",
        "-s": options.stacks and way in ("-v", "--count", "--folded or --flame", "--perfetto"),
    }
    _refuse_idle(way, idle)
    if options.marks and options.perfetto is None:
        raise UsageError("--marks draws in a timeline: give --perfetto FILE, too.")
    if options.by and not options.count:
        raise UsageError("--by counts events: give --count, too.")
    if options.user_stacks and way not in ("", "--json", "--folded or --flame"):
        raise UsageError(f"{way} shows no program's stack: give --json, --folded, --flame FILE or -u alone.")
    if options.user_stacks and options.stacks and way == "--json":
        raise UsageError("--json shows one stack of an event: give -s or -u.")
    if options.stacks and request.in_program:
        raise UsageError("the kernel has no stack behind a program's code: give -u for the program's own.")
    target = request.target
    if (
        target is not None
        and target.is_pattern
        and way not in ("--count", "--json", "--perfetto", "--emit-config", "--folded or --flame")
    ):
        raise UsageError("a pattern is many events, whose text would be mixed: give --count, or name one.")
    joins = request.is_call and (way == "--json" or filter_text is not None or request.fetch)
    if (joins and options.stacks) or (request.is_call and options.user_stacks and way in ("", "--json")):
        raise UsageError("the two events of a call have a stack each: trace its entry, as kprobe:FUNCTION.")
    for name, file in (
        ("--flame", options.flame),
        ("--trace-dat", options.trace_dat),
        ("--perfetto", options.perfetto),
    ):
        if file is not None and not os.access(file.parent, os.W_OK | os.X_OK):
            # It is written when the trace ends: what was counted until then would be lost.
            directory = one_line(str(file.parent))
            raise UsageError(f"{name}: no file can be made in {directory}: name one in another directory.")
    if filter_text is not None and (not filter_text.strip() or not filter_text.isprintable()):
        raise UsageError("the filter is empty or no single line: write it as 'FIELD < 0'.")


def _refuse_idle(way: str, idle: Mapping[str, bool]) -> None:
    """Refuse options that are given and that do nothing in this ``way``."""
    for name, given in idle.items():
        if given:
            raise UsageError(f"{way} does nothing with {name}: leave one of them out.")


def _warn(sentence: str) -> None:
    tell(f"warning: {sentence}")
