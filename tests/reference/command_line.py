"""The manual page and the shells' completion, made from the command line itself."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import click
from click.testing import CliRunner

from kprobe_exporter.cli import COMMANDS, main
from kprobe_exporter.cli.completion import PROGRAM, SHELLS

HEAD = r"""
.\" Made by make reference: do not edit.
.TH KPROBE\-EXPORTER 1
.SH NAME
kprobe\-exporter \- Linux kprobes, through tracefs, as Prometheus metrics
.SH SYNOPSIS
.B kprobe\-exporter
.I COMMAND
.RI [ OPTIONS ]
.SH DESCRIPTION
An agent that installs the kprobes, uprobes and tracepoints that a YAML file names, and serves their hits,
return values, errors and durations to Prometheus. Its other commands show what can be probed, check
configurations, trace at a terminal and replay saved traces.
.SH OPTIONS
"""

TAIL = r""".SH FILES
.TP
.I /etc/kprobe_exporter/*.yaml
The configuration of the service.
.TP
.I /etc/default/kprobe_exporter
The options of the service.
.SH EXIT STATUS
0 if all went well, 2 for a wrong configuration, option or argument, 1 for other failures.
"""


def manual() -> str:
    """The page in troff, for man(1)."""
    context = click.Context(main, info_name=PROGRAM, **main.context_settings)
    sections = [_section(context, name) for name in COMMANDS]
    return "".join([HEAD.lstrip("\n"), *_options(context), ".SH COMMANDS\n", *sections, TAIL])


def _section(parent: click.Context, name: str) -> str:
    """A command: its usage, help, options and examples."""
    command = main.get_command(parent, name)
    assert command is not None
    context = click.Context(command, parent, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    texts = [_paragraphs(command.help), *_options(context), _paragraphs(command.epilog)]
    return f".SS kprobe\\-exporter {_troff(name)} {_troff(usage)}\n{''.join(texts)}"


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record and record[1]:
            yield f".TP\n.B {_troff(record[0])}\n{_troff(' '.join(record[1].split()))}\n"


def _paragraphs(text: str | None) -> str:
    """Help as click reads it: a paragraph that begins with the character \\b keeps its lines."""
    parts = []
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        head, _, lines = paragraph.partition("\n")
        if head.strip() == "\b":
            parts.append(".PP\n.nf\n" + "".join(f"{_troff(line)}\n" for line in lines.splitlines()) + ".fi\n")
        elif paragraph:
            parts.append(f".PP\n{_troff(' '.join(paragraph.split()))}\n")
    return "".join(parts)


def completion(shell: str) -> str:
    """The script by which a shell completes our command line."""
    result = CliRunner().invoke(main, ["--print-completion", shell])
    assert result.exit_code == 0, result.output
    return result.stdout


def _troff(text: str) -> str:
    """Escape what troff takes for a request or for typography."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "kprobe-exporter.1": manual,
    **{f"completion.{shell}": partial(completion, shell) for shell in SHELLS},
}
"""Each below deploy/package, and what makes it."""
