"""``tool``: runs a terminal tool, which is a YAML file, or lists all of them."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from kprobe_exporter.cli.named import NamedCommands
from kprobe_exporter.cli.options import Seconds, kernel_errors, tell, tracefs_option
from kprobe_exporter.cli.scope import scope_options
from kprobe_exporter.cli.trace import tell_lost, tell_marks, tracing
from kprobe_exporter.diagnose.dry_run import look_each
from kprobe_exporter.errors import TracefsError, UsageError, one_line
from kprobe_exporter.probing.scope import OF_EVENTS, OF_TRACERS, Scope
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tools.load import (
    ADDED,
    FOLDER,
    Tool,
    Values,
    is_given,
    load_tool,
    tool_aliases,
    tool_names,
    tool_path,
)
from kprobe_exporter.tools.tool_model import OptionModel, OptionType
from kprobe_exporter.trace.emit import read_back
from kprobe_exporter.trace.function_tracer import TRACERS, tracer_lacked
from kprobe_exporter.trace.rows import Display
from kprobe_exporter.trace.run_tool import read_tool, records_process, run_tool
from kprobe_exporter.trace.session import trace_session
from kprobe_exporter.trace.timeline import write_timeline
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.mount import mounted

OWN = "own_"
"""The begin of the parameters that hold the values of a tool's own options."""

TYPES: Mapping[OptionType, tuple[Any, str]] = {
    "text": (str, "TEXT"),
    "number": (int, "NUMBER"),
    "time": (Seconds(), "TIME"),
    "size": (str, "SIZE"),
    "disk": (str, "DISK"),
    "signal": (str, "SIGNAL"),
    "user": (str, "USER"),
    "address": (str, "ADDRESS"),
    "function": (str, "FUNCTION"),
    "call": (str, "FUNCTION"),
}
"""How click reads the value of an option, and its name in the help."""

PLACES = click.Choice(ADDED)

ADD = "Add a column of the place where the thread runs, or a label: may be given several times."

POSITIVE = click.IntRange(min=1)
TIMELINE = "Write a timeline for ui.perfetto.dev; - is stdout."
FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


class Tools(NamedCommands):
    """The tools: a command for each file, made when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*tool_names(), *tool_aliases()])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        path = tool_path(name)
        if path is not None:
            return command(path)
        alias = tool_aliases().get(name)
        return None if alias is None else command(*alias, called=name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete the names of tools without reading their files, which would take too long."""
        names = [name for name in tool_names() if name.startswith(incomplete)]
        return [*map(CompletionItem, names), *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_tools(formatter, [load_tool(FOLDER / f"{name}.yaml") for name in tool_names()], {})


def write_tools(formatter: click.HelpFormatter, tools: Sequence[Tool], missing: Mapping[str, str]) -> None:
    """Write the tools by their subjects, and what is ``missing`` for some of them."""
    for subject in sorted({tool.model.subject for tool in tools}):
        with formatter.section(subject.capitalize()):
            found = [tool for tool in tools if tool.model.subject == subject]
            formatter.write_dl([(tool.name, _summary(tool, missing.get(tool.name))) for tool in found])


def _summary(tool: Tool, missing: str | None) -> str:
    also = f" Also called {', '.join(tool.model.aliases)}." if tool.model.aliases else ""
    return tool.model.help + (also if missing is None else f" NOT HERE: {one_line(missing)}")


def missing_here(tools: Sequence[Tool], tracefs: Path | None) -> dict[str, str]:
    """Return why tools cannot run on this kernel, as far as reading tells, and what to use instead.

    Raises TracefsError.
    """
    with mounted(tracefs) as root, kernel_errors():
        files = ReadOnlyTracefs(root)
        lacking = {
            tool.name: tool.missing(why)
            for tool in tools
            if tool.model.view in TRACERS and (why := tracer_lacked(files, tool.model.view)) is not None
        }
        tools = [tool for tool in tools if tool.model.view not in TRACERS]
        configs = [read_back(tool.text) for tool in tools]
        found = look_each(configs, running_kernel(files), Symbols(files).visible) if configs else []
    return lacking | {
        tool.name: tool.missing(row.lacks or next(iter(row.why), row.state))
        for tool, rows in zip(tools, found, strict=True)
        for row in reversed(rows)
        if row.state == "down"
    }


@click.group(
    cls=Tools,
    invoke_without_command=True,
    epilog="""\b
Examples:
  kprobe-exporter tool                      # all tools, by subject
  kprobe-exporter tool --live               # the same, and what this kernel lacks for some
  kprobe-exporter tool NAME --help          # its options, and examples
  kprobe-exporter tool ./mine.yaml          # a tool of your own
  kprobe-exporter tool NAME --emit-config   # the configuration with which the agent does the same
""",
)
@click.option("--live", is_flag=True, help="List the tools, and what this kernel lacks for some of them.")
@tracefs_option
@click.pass_context
def tool(ctx: click.Context, live: bool, tracefs: Path | None) -> None:
    """Run a terminal tool until Ctrl-C, and leave the kernel as it was.

    Names, columns and options are those of bcc's tools where there are any. A tool needs no BPF, no
    compiler and no capability.
    """
    if live:
        tools = [load_tool(FOLDER / f"{name}.yaml") for name in tool_names()]
        formatter = ctx.make_formatter()
        write_tools(formatter, tools, missing_here(tools, tracefs))
        click.echo(formatter.getvalue().strip())
        ctx.exit()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def command(path: Path, values: Values | None = None, called: str | None = None) -> click.Command:
    """Return the command of a tool, with values of options for another name by which it is ``called``.

    Raises ConfigError if its file is wrong.
    """
    loaded = load_tool(path)
    model, view = loaded.model, loaded.model.view
    claimed = {option.short for option in model.options.values()}

    @scope_options()
    def run(scope: Scope, **given: Any) -> None:
        _run(path, scope, given, values or {})

    flag, value = partial(click.option, is_flag=True), click.option
    rows, text = view == "rows", view in TRACERS
    stacks = view == "stacks"
    listed = not (view in ("hist", "stacks") or text)
    most = "End after so many rows." if rows else "Show at most so many rows."
    common = [
        (True, value("-d", "--duration", "seconds", type=Seconds(), metavar="SECS", help="End after that.")),
        (listed, value("-n", "--rows", "most", type=POSITIVE, metavar="ROWS", help=most)),
        (
            not (rows or stacks or text),
            value("-i", "--interval", type=Seconds(), metavar="SECS", help="Show each interval's numbers."),
        ),
        (
            not (stacks or text or view == "classes"),
            value("--add", "added", multiple=True, type=PLACES, help=ADD),
        ),
        (not (stacks or text), flag("-T", "--timestamp", help="Begin with the time of day.")),
        (rows, flag("-s", "--stacks", help="Show the kernel stack below each row.")),
        (not (stacks or text), flag("--json", "as_json", help="One JSON object a line.")),
        (listed, flag("--csv", "as_csv", help="Comma-separated values, for spreadsheets.")),
        (stacks, value("--flame", type=FILE, metavar="FILE", help="Write a flame graph instead of text.")),
        (rows, value("--perfetto", type=FILE, metavar="FILE", help=TIMELINE)),
        (rows, flag("--marks", help="With --perfetto: also the marks that programs write.")),
        (True, flag("-v", "--verbose", help="Say what is attached.")),
        (True, flag("--emit-config", "emit", help="Print the agent's configuration.")),
        (True, tracefs_option),
    ]
    for wanted, option in reversed(common):
        if wanted:
            option(run)
    made = click.command(called or path.stem, help=model.help, epilog=_teaching(loaded))(run)
    for param in made.params:
        param.opts = [name for name in param.opts if name[1:] not in claimed]
    made.params[:0] = [_option(key, option) for key, option in model.options.items()]
    return made


def _option(name: str, option: OptionModel) -> click.Parameter:
    if option.argument:
        kind, metavar = TYPES[option.type][0], name.upper()
        parameter = OWN + name.replace("-", "_")
        return click.Argument([parameter], type=kind, required=option.default is None, metavar=metavar)
    names = [*([f"-{option.short}"] if option.short else []), f"--{name}", OWN + name.replace("-", "_")]
    if option.type == "flag":
        return click.Option(names, is_flag=True, help=option.help)
    kind, metavar = TYPES[option.type]
    return click.Option(names, type=kind, metavar=metavar, help=option.help)


def _teaching(tool: Tool) -> str:
    """Return the end of a tool's help: its examples, and an output."""
    model = tool.model
    parts = []
    if arguments := {key: one.help for key, one in model.options.items() if one.argument}:
        parts.append(
            "\n".join(["\b", "Arguments:", *(f"  {key.upper()}  {use}" for key, use in arguments.items())])
        )
    if model.examples:
        wide = max(map(len, model.examples))
        lines = [f"  kprobe-exporter {one:<{wide}}  # {use}" for one, use in model.examples.items()]
        parts.append("\n".join(["\b", "Examples:", *lines]))
    if model.output:
        parts.append("\n".join(["\b", "Output:", *(f"  {line}" for line in model.output.splitlines())]))
    return "\n\n".join(parts)


def _run(path: Path, scope: Scope, given: dict[str, Any], values: Values) -> None:
    """Run a tool with the values of its command line, and those of its name."""
    own = {
        name.removeprefix(OWN).replace("_", "-"): value
        for name, value in given.items()
        if name.startswith(OWN)
    }
    chosen = {**values, **{name: value for name, value in own.items() if is_given(value)}}
    tool = load_tool(path, chosen, given.get("added", ()))
    if given["emit"]:
        if scope.narrows:
            raise UsageError("--emit-config does nothing with a scope: leave one of them out.")
        read_tool(tool)
        click.echo(tool.text, nl=False)
        return
    if given.get("as_json") and given.get("as_csv"):
        raise UsageError("--json and --csv do not go together: give one of them.")
    if given.get("marks") and given.get("perfetto") is None:
        raise UsageError("--marks draws in a timeline: give --perfetto FILE, too.")
    try:
        _show(tool, scope, given)
    except TracefsError:
        missing = None
        with suppress(TracefsError):
            missing = missing_here([tool], given["tracefs"]).get(tool.name)
        if missing is None:
            raise
        raise TracefsError(f"{tool.name} cannot run here: {missing}") from None


def _show(tool: Tool, scope: Scope, given: dict[str, Any]) -> None:
    """Run a tool with the options that all tools have. Raises TracefsError, StartError and UsageError."""
    settings, probes = read_tool(tool)
    by_tracer = tool.model.view in TRACERS
    if by_tracer and scope.comm is not None:
        raise UsageError("--comm narrows events alone, and not a tracer of functions: give another scope.")
    with tracing(given["tracefs"], verbose=given["verbose"]) as (files, probed_files, out):
        shown = Display(
            "json" if given.get("as_json") else "csv" if given.get("as_csv") else "text",
            given.get("timestamp", False),
            given.get("stacks", False),
            given.get("most"),
            shutil.get_terminal_size().columns if out.terminal else None,
            given.get("interval"),
        )
        tgid, seconds = records_process(tool, probes), given.get("seconds")
        size, lists = settings.buffer_size, OF_TRACERS if by_tracer else OF_EVENTS
        with trace_session(
            files, probed_files, scope, out, seconds, tell, buffer_size=size, tgid=tgid, lists=lists
        ) as session:
            if (timeline := given.get("perfetto")) is not None:
                told = partial(tell_marks, files.root) if given.get("marks") else None
                lost = write_timeline(session, probes, timeline, marks=told)
            else:
                flame = given.get("flame")
                lost = run_tool(session, tool, probes, shown, scope=scope, flame=flame, tell=tell)
    tell_lost(lost, "use a scope such as -p to record less")
