"""``replay``: prints the metrics of saved trace text."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from kprobe_exporter.cli.options import config_option, counted
from kprobe_exporter.config.load import load
from kprobe_exporter.errors import SourceError, UsageError, one_line
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.replay.replay import Replay, Summary
from kprobe_exporter.util.progress import progress

CHUNK = 1 << 20
NAMES_SHOWN = 20

SILENT = 2.0
"""Seconds before the progress is shown: most files are done by then."""

STEP = 0.5


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter replay trace.txt
  ssh host cat /sys/kernel/tracing/trace | kprobe-exporter replay -
  kprobe-exporter replay --config probes.yaml trace.txt > metrics.prom
""",
)
@click.argument("file", type=click.Path(readable=False, allow_dash=True))
@config_option("Feed the probes of this configuration: each by the events that have its name.")
def replay(file: str, paths: tuple[Path, ...]) -> None:
    """Read saved text of 'trace' or 'trace_pipe', of any kernel since 2.6.33, and print the metrics.

    FILE may be '-' for stdin. Events are counted by name; of return values and errors those that
    cannot be anything else: an argument called return, ret, retval or rval, or the only one of a
    return. A summary goes to stderr. The exit status is 1 if nothing in the text is an event, 2 if
    it cannot be read.
    """
    config = load(paths, DECODERS) if paths else None
    for warning in config.warnings if config else ():
        click.echo(warning, err=True)
    run = Replay(config)
    try:
        with opened(file) as stream:
            read(stream, run)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    click.echo(run.metrics(), nl=False)
    click.echo(shown(run.summary), err=True)
    if not run.summary.events:
        raise SourceError(f"nothing in {file} is an event.")


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """Open the file, or stdin for ``-``, without buffering."""
    if file == "-":
        yield sys.stdin.buffer.raw if hasattr(sys.stdin.buffer, "raw") else sys.stdin.buffer
    else:
        with open(file, "rb", buffering=0) as stream:
            yield stream


def read(stream: BinaryIO, run: Replay) -> None:
    """Feed the whole stream to ``run``, and show the progress."""
    size, done, due = _size(stream), 0, time.monotonic() + SILENT
    with progress() as show:
        while data := stream.read(CHUNK):
            run.feed(data)
            done += len(data)
            if time.monotonic() >= due:
                due = time.monotonic() + STEP
                share = f"{min(1, done / size):4.0%}  " if size else ""
                show(f"{share}{done / 1e6:,.0f} MB, {run.summary.lines:,} lines")
        run.finish()


def _size(stream: BinaryIO) -> int:
    """Return the size of a regular file, or 0 for a pipe."""
    try:
        return os.fstat(stream.fileno()).st_size
    except (OSError, ValueError):
        return 0


def shown(summary: Summary) -> str:
    """Return the summary as text: the totals, then the events by name, the most frequent ones first."""
    lines = [
        f"{counted(summary.lines, 'line')}: {counted(summary.events.total(), 'event')},"
        f" {counted(summary.stacks, 'stack')}, {summary.rejected} rejected, {summary.cut} cut;"
        f" {counted(summary.lost, 'event')} lost by the kernel"
    ]
    if summary.unclear:
        said = "is not counted, because only its event's definition could tell what it is"
        lines.append(f"{counted(summary.unclear, 'return value')}: each {said}")
    lines += [f"{count:>9}  {one_line(name)}" for name, count in summary.events.most_common(NAMES_SHOWN)]
    if len(summary.events) > NAMES_SHOWN:
        lines.append(f"{'':>9}  and {len(summary.events) - NAMES_SHOWN} more names")
    return "\n".join(lines)
