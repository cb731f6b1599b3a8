"""Shows the progress of a long run on one line of stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows its text instead of the one before, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    shown = False

    def show(text: str) -> None:
        nonlocal shown
        shown = True
        click.echo(f"\r{text}\x1b[K", err=True, nl=False)

    try:
        yield show
    finally:
        if shown:
            click.echo("\r\x1b[K", err=True, nl=False)
