"""``list``: prints what can be probed, as attach strings to paste into a configuration."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from kprobe_exporter.cli.completion import complete_places
from kprobe_exporter.cli.options import kernel_errors, tracefs_option
from kprobe_exporter.errors import UsageError, one_line
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.service import logs
from kprobe_exporter.symbols.listing.details import Details
from kprobe_exporter.symbols.listing.kernel import KernelPlaces
from kprobe_exporter.symbols.listing.query import Query, file_places, parse_query
from kprobe_exporter.tracefs.mount import mounted


def _show(places: Sequence[Target], details: Mapping[Target, Sequence[str]], notes: Iterable[str]) -> None:
    """Print all lines by one write: if the reader has closed the pipe by then, click exits quietly."""
    for note in notes:
        click.echo(f"kprobe-exporter: {one_line(note)}", err=True)
    lines = []
    for place in places:
        lines += [str(place), *(f"    {detail}" for detail in details.get(place, ()))]
    click.echo("\n".join(lines))


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter list 'tcp_*'
  kprobe-exporter list -v tracepoint:sched:sched_switch
  kprobe-exporter list do_fork                 # why not, and what to probe instead
  kprobe-exporter list -x /bin/bash 'readline*'
""",
)
@click.argument("glob", default="*", required=False, shell_complete=complete_places)
@click.option("-v", "--verbose", is_flag=True, help="Also prototypes of functions, fields of tracepoints.")
@click.option(
    "-x",
    "--executable",
    "path",
    type=click.Path(),
    metavar="PATH",
    help="The functions of this program or library.",
)
@tracefs_option
def list(glob: str, verbose: bool, path: str | None, tracefs: Path | None) -> None:  # noqa: A001
    """List what can be probed, one attach string a line, sorted.

    GLOB is a shell pattern over the names of functions and tracepoints: 'tcp_*'. With a colon in it,
    what stands before is a module or a tracepoint's system: 'sched:*'. A kind in front, such as
    kprobe:, fentry:, call:, tracepoint:, syscall: or uprobe:PATH:, lists just that.

    Functions are those that the kernel lists as traceable and keeps no kprobes off, and whose name is
    one function's alone. Of a name without a pattern that cannot be probed it says why: it is not there
    or was inlined, notrace, blacklisted, in a module that is not loaded, or ambiguous. What is printed
    was not tried; only the kernel's answer to a probe is certain. Root reads the kernel's lists.

    The exit status is 1 if nothing matches.
    """
    logs.set_up("warning", "text")
    query = parse_query(glob)
    if path is not None:
        if query.kind or query.owner:
            raise UsageError("-x takes the names of functions alone: write GLOB without a colon.")
        query = Query(glob, Kind.UPROBE, path, query.name)
    if query.kind and query.kind.in_file:
        if verbose:
            raise UsageError(
                "-v shows what the kernel knows, which is nothing of a file's functions: leave it out."
            )
        _show(file_places(query), {}, ())
        return
    with mounted(tracefs) as root, kernel_errors():
        places, notes = KernelPlaces(root).find(query)
        details, unread = Details(root).of(places) if verbose else ({}, [])
    _show(places, details, (*notes, *unread))
