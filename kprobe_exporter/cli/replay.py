"""``replay``: prints the metrics of saved trace text."""

import codecs
import gzip
import io
import lzma
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kprobe_exporter.cli.options import config_option
from kprobe_exporter.config.load import load
from kprobe_exporter.errors import SourceError, UsageError, counted, one_line
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.replay.replay import Replay, Summary
from kprobe_exporter.util.progress import progress

CHUNK = 1 << 20
NAMES_SHOWN = 20

SILENT = 2.0
"""Seconds before the progress is shown: most files are done by then."""

STEP = 0.5

OPENERS: dict[bytes, Callable[[io.BufferedReader], io.BufferedIOBase]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
"""How a compressed file is read, by its first bytes."""


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

    FILE may be '-' for stdin, and compressed by gzip or xz. Events are counted by name; of return
    values and errors those that cannot be anything else: an argument called return, ret, retval or
    rval, or the only one of a return. A summary goes to stderr. The exit status is 1 if nothing in
    the text is an event, 2 if it cannot be read.
    """
    config = load(paths, DECODERS) if paths else None
    for warning in config.warnings if config else ():
        click.echo(warning, err=True)
    run = Replay(config)
    try:
        with opened(file) as stream:
            read(stream, run)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        why = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UsageError(f"{file} cannot be read: {why}.") from None
    click.echo(run.metrics(), nl=False)
    click.echo(shown(run.summary), err=True)
    if not run.summary.events:
        raise SourceError(f"nothing in {file} is an event.")


@contextmanager
def opened(file: str) -> Iterator[io.BufferedIOBase]:
    """Open the file, or stdin for ``-``, and decompress it. Raises UsageError for UTF-16."""
    with open(0 if file == "-" else file, "rb", closefd=file != "-") as stream:
        start = stream.peek(16)[:16]
        if is_utf_16(start):
            fix = "iconv -f UTF-16 -t UTF-8"
            raise UsageError(f"{file} cannot be read: it is UTF-16 (convert it first: {fix}).")
        opener = next((opener for magic, opener in OPENERS.items() if start.startswith(magic)), None)
        if opener is None:
            yield stream
        else:
            with opener(stream) as plain:
                yield plain


def is_utf_16(start: bytes) -> bool:
    """Return whether a text that starts so is UTF-16: it has its mark, or NULs between ASCII letters."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    zeros = [not any(start[first::2]) for first in (0, 1)]
    return len(start) >= 4 and zeros in ([True, False], [False, True])


def read(stream: io.BufferedIOBase, run: Replay) -> None:
    """Feed the whole stream to ``run``, and show the progress."""
    size, done, due = _size(stream), 0, time.monotonic() + SILENT
    with progress() as show:
        while data := stream.read1(CHUNK):
            run.feed(data)
            done += len(data)
            if time.monotonic() >= due:
                due = time.monotonic() + STEP
                share = f"{min(1, done / size):4.0%}  " if size else ""
                show(f"{share}{done / 1e6:,.0f} MB, {run.summary.lines:,} lines")
        run.finish()


def _size(stream: io.BufferedIOBase) -> int:
    """Return the size of the text, or 0 if it is not known: that of a pipe or a compressed file."""
    return os.fstat(stream.fileno()).st_size if isinstance(stream, io.BufferedReader) else 0


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
    if summary.swallowed:
        said = "appears to be within another line, and its event is not counted"
        lines.append(f"{counted(summary.swallowed, 'line')}: each {said}")
    lines += [f"{count:>9}  {one_line(name)}" for name, count in summary.events.most_common(NAMES_SHOWN)]
    if len(summary.events) > NAMES_SHOWN:
        lines.append(f"{'':>9}  and {len(summary.events) - NAMES_SHOWN} more names")
    return "\n".join(lines)
