"""The command line: one file per command, and the error handling that all commands share.

Takes the words of a command line. Gives its output and an exit status; an error that the user can fix
becomes one sentence, without a traceback.
May import agent, config, diagnose, errors, grammar, labels, probing, replay, service, sessions,
symbols, symbols/listing, tools, trace, tracefs and util.
"""

import gc
import importlib
import sys
from functools import cache
from typing import Any

import click
from click.shell_completion import CompletionItem

from kprobe_exporter import __version__
from kprobe_exporter.cli.completion import completion_option
from kprobe_exporter.cli.named import NamedCommands
from kprobe_exporter.errors import ConfigError, GrammarError, KprobeExporterError, UsageError, one_line

COMMANDS = {
    "run": "Run the agent until SIGTERM or Ctrl-C.",
    "check": "Validate configurations; --live and --against show what kernels would make of them.",
    "doctor": "Show, or save, what this kernel and this container can and cannot do.",
    "diff": "Show what differs between two saved kernels, and which probes that affects.",
    "list": "List what can be probed: functions and tracepoints.",
    "trace": "Trace one definition at the command line, as perf-tools' kprobe does.",
    "tool": "Run a terminal tool, as bcc has them: execsnoop, biolatency, tcptop, …",
    "session": "Ask a running agent to run terminal tools for a while.",
    "replay": "Print the metrics of saved trace text.",
    "cleanup": "Remove what killed agents left in the kernel.",
    "schema": "Print the JSON Schema of the configuration.",
}

WRONG_USAGE = 2


class Commands(NamedCommands):
    """Imports a command's module only when the command is used: ``check`` needs no HTTP server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # once imported, the submodule list hides the built-in list()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete the names of commands without importing a command, which would take too long."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _imported(name) if name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; report an error that the user can fix in one sentence, without a traceback."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            click.echo(str(error), err=True)
            sys.exit(WRONG_USAGE)
        except KprobeExporterError as error:
            click.echo(f"kprobe-exporter: {one_line(str(error))}", err=True)
            sys.exit(WRONG_USAGE if isinstance(error, UsageError | GrammarError) else 1)


@cache
def _imported(name: str) -> click.Command:
    """Import a command.

    All that it imports lasts as long as the process, so the garbage collector must not scan it. The
    scans took a seventh of a start's CPU time, and later 30 ms of every full collection, in which
    no other thread runs.
    """
    gc.disable()
    try:
        command: click.Command = getattr(importlib.import_module(f"kprobe_exporter.cli.{name}"), name)
        return command
    finally:
        gc.freeze()
        gc.enable()


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Try: kprobe-exporter run, then curl localhost:10435/metrics",
)
@click.version_option(__version__, prog_name="kprobe-exporter")
@completion_option
def main() -> None:
    """Watch what the Linux kernel does, from Prometheus, with a YAML file and nothing to compile."""
