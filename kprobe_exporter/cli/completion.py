"""Completion in bash, zsh and fish: their scripts, and the names of functions and tracepoints."""

import os
import re
from contextlib import suppress
from itertools import islice

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from kprobe_exporter.errors import KprobeExporterError

PROGRAM = "kprobe-exporter"
VARIABLE = "_KPROBE_EXPORTER_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

MOST_PLACES = 5000
"""The most names that a shell is given. If there are more, it gets none: it would take a part for all."""


@add_completion_class
class ColonBash(BashComplete):
    """click's completion for bash, extended to words that contain a colon.

    For bash, a colon ends a word (COMP_WORDBREAKS). So the script passes the line, and gives bash only the
    part after the last colon, as bash-completion's __ltrim_colon_completions does.
    """

    source_template = """\
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" type value
    local word="${line##*[[:space:]]}" known=""
    [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && known="${word%%:*}:"
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                COMPREPLY+=("${value#"$known"}")
                [[ $value == *: ]] && compopt -o nospace
                ;;
        esac
    done < <(COMP_LINE="$line" %(complete_var)s=bash_complete "$1")
}

complete -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the word at the cursor."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])


def complete_places(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete functions and tracepoints as ``list`` shows them; a user who may not read them gets none."""
    from kprobe_exporter.symbols.listing.kernel import KernelPlaces  # noqa: PLC0415 - needed only here
    from kprobe_exporter.tracefs.mount import find, mountinfo  # noqa: PLC0415

    with suppress(OSError, KprobeExporterError):
        asked = ctx.params.get("tracefs")
        mount = find(mountinfo())
        path = asked or (mount and mount.path)
        if path:
            names = set(islice(KernelPlaces(path).starting(incomplete), MOST_PLACES + 1))
            return [CompletionItem(name) for name in sorted(names)] if len(names) <= MOST_PLACES else []
    return []


def complete_definitions(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete what ``trace`` takes: functions after a kind, ``p:`` or ``r:``, and bare tracepoints."""
    from kprobe_exporter.grammar.target import Kind  # noqa: PLC0415

    kind, colon, name = incomplete.partition(":")
    if colon and kind in frozenset(Kind):
        return complete_places(ctx, param, incomplete)
    kinds = [f"{one}:" for one in Kind if f"{one}:".startswith(incomplete) and one is not Kind.PAIR]
    listed, head = "tracepoint:", ""
    if colon and re.fullmatch(r"[pr]\d*", kind):
        listed, head, incomplete = "kprobe:", f"{kind}:", name
    places = complete_places(ctx, param, f"{listed}{incomplete}")
    return [
        *map(CompletionItem, kinds),
        *(CompletionItem(f"{head}{place.value.removeprefix(listed)}") for place in places),
    ]


def _print(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if shell is None or ctx.resilient_parsing:
        return
    made: type[ShellComplete] | None = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.command, {}, PROGRAM, VARIABLE).source(), nl=False)
    ctx.exit()


completion_option = click.option(
    "--print-completion",
    type=click.Choice(SHELLS),
    is_eager=True,
    expose_value=False,
    callback=_print,
    metavar="bash|zsh|fish",
    help="Print the script by which this shell completes our command line, and exit.",
)
