"""``list``: prints what can be probed, as attach strings to paste into a configuration."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path

import click

from kprobe_exporter.cli.completion import complete_places
from kprobe_exporter.cli.options import kernel_errors, tracefs_option
from kprobe_exporter.errors import GrammarError, ProbeRefused, UsageError, one_line
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.service import logs
from kprobe_exporter.symbols.listing.details import Details, structure
from kprobe_exporter.symbols.listing.kernel import KernelPlaces
from kprobe_exporter.symbols.listing.query import Query, file_places, parse_query, usdt_places
from kprobe_exporter.tracefs.mount import mounted
from kprobe_exporter.util.rooted_path import ProbedFiles

AT_ONCE = 10_000  # Lines that are printed by one write


def _lines(places: Iterable[Target], details: Mapping[Target, Sequence[str]]) -> Iterator[str]:
    for place in places:
        yield str(place)
        yield from (f"    {detail}" for detail in details.get(place, ()))


def _show(lines: Iterator[str], notes: Iterable[str] = ()) -> None:
    """Print all lines, many by one write: if the reader has closed the pipe by then, click exits quietly."""
    for note in notes:
        click.echo(f"kprobe-exporter: {one_line(note)}", err=True)
    while some := "\n".join(islice(lines, AT_ONCE)):
        click.echo(some)


def _show_file(query: Query, *, every: bool) -> None:
    """Print the USDT probes of a file with their arguments, its functions, or both if ``every``."""
    probes: Mapping[Target, Sequence[str]] = {}
    functions: Iterable[str] = ()
    with closing(ProbedFiles()) as files:
        if every or query.kind is Kind.USDT:
            with suppress(*((ProbeRefused, GrammarError) if every else ())):
                probes = usdt_places(query, files)
        if every or query.kind is not Kind.USDT:
            with suppress(*((ProbeRefused,) if probes else ())):
                functions = file_places(query, files)
    _show(chain(_lines(probes, probes), functions))


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter list 'tcp_*'
  kprobe-exporter list -v tracepoint:sched:sched_switch
  kprobe-exporter list do_fork                 # why not, and what to probe instead
  kprobe-exporter list -x /bin/bash 'readline*'
  kprobe-exporter list --type sock
  kprobe-exporter list -x libc.so.6 0x98930    # which function is at this offset of the file
  kprobe-exporter list usdt:/usr/bin/python3.11:
""",
)
@click.argument("glob", default="*", required=False, shell_complete=complete_places)
@click.option("-v", "--verbose", is_flag=True, help="Also prototypes and fields; of one function, members.")
@click.option("--type", "named", metavar="[MODULE:]STRUCT", help="The members of a structure, by offset.")
@click.option(
    "-x",
    "--executable",
    "path",
    type=click.Path(),
    metavar="PATH",
    help="The functions and USDT probes of this program or library; a library also by its name.",
)
@tracefs_option
def list(  # noqa: A001
    glob: str, verbose: bool, path: str | None, named: str | None, tracefs: Path | None
) -> None:
    """List what can be probed, one attach string a line, sorted.

    GLOB is a shell pattern over the names of functions and tracepoints: 'tcp_*'. Before a colon stands a
    module or a tracepoint's system: 'sched:*'. A kind in front, such as
    kprobe:, fentry:, call:, tracepoint:, syscall:, uprobe:PATH: or usdt:PATH:, lists just that.

    Functions are those that the kernel lists as traceable and keeps no kprobes off, and whose name is
    one function's alone. If GLOB is one name that cannot be probed, the reason is shown: it is absent,
    inlined, notrace, blacklisted, in a module that is not loaded, or ambiguous. The output was not tried;
    only the kernel's answer to a probe is certain. Root reads the kernel's lists.

    --type prints a structure of the kernel as its BTF has it: the offset of each member in bytes, of a
    bit field also the bit, for the paths of `fetch`.

    The exit status is 1 if nothing matches.
    """
    logs.set_up("warning", "text")
    if named is not None:
        if path is not None or glob != "*":
            raise UsageError("--type lists one structure alone: leave GLOB and -x out.")
        with kernel_errors():
            click.echo("\n".join(structure(named)))
        return
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
        _show_file(query, every=path is not None)
        return
    with mounted(tracefs) as root, kernel_errors():
        places, notes = KernelPlaces(root).find(query)
        details, unread = Details(root).of(places) if verbose else ({}, [])
    _show(_lines(places, details), (*notes, *unread))
