"""``tool``: runs a terminal tool, which is a YAML file, or lists all of them."""

import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from kprobe_exporter.cli.named import NamedCommands
from kprobe_exporter.cli.options import Seconds, kernel_errors, tell, tracefs_option
from kprobe_exporter.errors import UsageError
from kprobe_exporter.service import logs
from kprobe_exporter.tools.load import FOLDER, Tool, load_tool, tool_names
from kprobe_exporter.tools.tool_model import OptionModel, OptionType
from kprobe_exporter.trace.output import Interrupt, Output
from kprobe_exporter.trace.rows import Shown
from kprobe_exporter.trace.run_tool import probes_of, records_process, run_tool
from kprobe_exporter.trace.session import Scope, trace_session
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.mount import mounted
from kprobe_exporter.util.rooted_path import ProbedFiles

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
}
"""How click reads the value of an option, and its name in the help."""

POSITIVE = click.IntRange(min=1)


class Tools(NamedCommands):
    """The tools: a command for each file, made when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return tool_names()

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return command(name) if name in tool_names() else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for subject, tools in by_subject().items():
            with formatter.section(subject.capitalize()):
                formatter.write_dl([(tool.name, tool.model.help) for tool in tools])


def by_subject() -> dict[str, list[Tool]]:
    """Return all tools by their subjects."""
    found: dict[str, list[Tool]] = {}
    for tool in (load_tool(FOLDER / f"{name}.yaml") for name in tool_names()):
        found.setdefault(tool.model.subject, []).append(tool)
    return dict(sorted(found.items()))


@click.group(
    cls=Tools,
    invoke_without_command=True,
    epilog="""\b
Examples:
  kprobe-exporter tool                      # all tools, by subject
  kprobe-exporter tool NAME --help          # its options, and examples
  kprobe-exporter tool NAME --emit-config   # the configuration with which the agent does the same
""",
)
@click.pass_context
def tool(ctx: click.Context) -> None:
    """Run a terminal tool until Ctrl-C, and leave the kernel as it was.

    Names, columns and options are those of bcc's tools where there are any. A tool needs no BPF, no
    compiler and no capability.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def command(name: str) -> click.Command:
    """Return the command of a tool. Raises ConfigError if its file is wrong."""
    loaded = load_tool(FOLDER / f"{name}.yaml")
    model, view = loaded.model, loaded.model.view
    claimed = {option.short for option in model.options.values()}

    def common(letter: str, *names: str, **how: Any) -> click.Option:
        return click.Option([*([] if letter in claimed else [f"-{letter}"]), *names], **how)

    def run(**given: Any) -> None:
        _run(FOLDER / f"{name}.yaml", given)

    own = [_option(key, option) for key, option in model.options.items()]
    rows, stacks = view == "rows", view == "stacks"
    everywhere = [
        common("p", "--pid", type=POSITIVE, metavar="PID", help="Only this process."),
        common("L", "--tid", type=POSITIVE, metavar="TID", help="Only this thread."),
        common("d", "--duration", "seconds", type=Seconds(), metavar="SECS", help="End after so long."),
        common("n", "--rows", "most", type=POSITIVE, metavar="ROWS", help="End after so many rows.")
        if rows
        else common("n", "--rows", "most", type=POSITIVE, metavar="ROWS", help="Show at most so many rows."),
        common("T", "--timestamp", is_flag=True, help="Begin with the time of day."),
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON object a line."),
        click.Option(["--csv", "as_csv"], is_flag=True, help="Comma-separated values, as spreadsheets read."),
        common("s", "--stacks", is_flag=True, help="Show the kernel stack below each row."),
        common("i", "--interval", type=Seconds(), metavar="SECS", help="Show the numbers of each interval."),
        click.Option(
            ["--flame"],
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            metavar="FILE",
            help="Write a flame graph instead of text.",
        ),
        common("v", "--verbose", is_flag=True, help="Say what is attached."),
        click.Option(["--emit-config", "emit"], is_flag=True, help="Print the agent's configuration."),
    ]
    left_out = {
        "as_csv": view in ("hist", "stacks"),
        "stacks": not rows,
        "interval": rows or stacks,
        "most": view in ("hist", "stacks"),
        "timestamp": stacks,
        "as_json": stacks,
        "flame": not stacks,
    }
    params = [option for option in everywhere if not left_out.get(option.name or "")]
    made = click.Command(
        name, params=[*own, *params], callback=run, help=model.help, epilog=_teaching(loaded)
    )
    return tracefs_option(made)


def _option(name: str, option: OptionModel) -> click.Option:
    names = [*([f"-{option.short}"] if option.short else []), f"--{name}", OWN + name.replace("-", "_")]
    if option.type == "flag":
        return click.Option(names, is_flag=True, help=option.help)
    kind, metavar = TYPES[option.type]
    return click.Option(names, type=kind, metavar=metavar, help=option.help)


def _teaching(tool: Tool) -> str:
    """Return the end of a tool's help: its examples, and an output."""
    model = tool.model
    parts = []
    if model.examples:
        wide = max(map(len, model.examples))
        lines = [f"  kprobe-exporter {one:<{wide}}  # {use}" for one, use in model.examples.items()]
        parts.append("\n".join(["\b", "Examples:", *lines]))
    if model.output:
        parts.append("\n".join(["\b", "Output:", *(f"  {line}" for line in model.output.splitlines())]))
    return "\n\n".join(parts)


def _run(path: Path, given: dict[str, Any]) -> None:
    """Run a tool with the values of its command line."""
    values = {
        name.removeprefix(OWN).replace("_", "-"): value
        for name, value in given.items()
        if name.startswith(OWN)
    }
    tool = load_tool(path, values)
    if given["emit"]:
        probes_of(tool)
        click.echo(tool.text, nl=False)
        return
    if given.get("as_json") and given.get("as_csv"):
        raise UsageError("--json and --csv do not go together: give one of them.")
    if given["pid"] is not None and given["tid"] is not None:
        raise UsageError("--pid and --tid do not go together: a thread is of one process only.")
    probes = probes_of(tool)
    scope = Scope(given["pid"], given["tid"])
    with Interrupt().heeded() as stop, kernel_errors():
        logs.set_up("info" if given["verbose"] else "warning", "text")
        out = Output(sys.stdout.fileno(), stop, terminal=sys.stdout.isatty())
        shown = Shown(
            "json" if given.get("as_json") else "csv" if given.get("as_csv") else "text",
            given.get("timestamp", False),
            given.get("stacks", False),
            given.get("most"),
            shutil.get_terminal_size().columns if out.terminal else None,
            given.get("interval"),
        )
        with mounted(given["tracefs"]) as root, closing(ProbedFiles()) as probed_files:
            files = MountedTracefs(root)
            tgid = records_process(tool, probes)
            with trace_session(
                files, probed_files, scope, out, given.get("seconds"), tell, tgid=tgid
            ) as session:
                lost = run_tool(session, tool, probes, shown, each=scope.narrows, flame=given.get("flame"))
    if lost:
        tell(f"warning: {lost:,} events were lost, for the ring buffer was full: -p needs less.")
