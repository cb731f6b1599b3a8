"""Parts that several commands share: options, the plural of a count, and the kernel's errors."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import click

from kprobe_exporter.errors import TracefsError, one_line
from kprobe_exporter.grammar.lexis import SECONDS
from kprobe_exporter.service import logs

Command = TypeVar("Command", bound=Callable[..., Any])


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """A time above 0 in seconds: ``10``, ``0.5``, ``10s``, ``500ms``, ``2m``, ``1h``."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds. Raises click.BadParameter."""
        if isinstance(value, float):
            return value
        found = _TIME.fullmatch(str(value))
        seconds = float(Decimal(found[1]) * SECONDS[found[2] or "s"]) if found else 0.0
        if not seconds:
            self.fail(f"{value!r} is not a time above 0: write it as 10, 10s, 500ms, 2m or 1h", param, ctx)
        return seconds


_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?")


class Level(click.Choice[str]):
    """A level of the log; ``warn`` as other exporters call ``warning``."""

    def __init__(self) -> None:
        super().__init__(logs.LEVELS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the level. Raises click.BadParameter."""
        return str(super().convert("warning" if value == "warn" else value, param, ctx))


def config_option(text: str) -> Callable[[Command], Command]:
    """Return the repeatable option ``--config FILE|DIR``; ``text`` is its help."""
    return click.option(
        "--config", "paths", type=click.Path(path_type=Path), multiple=True, metavar="FILE|DIR", help=text
    )


tracefs_option = click.option(
    "--tracefs",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The tracefs to use, instead of the mounted one, as /tracefs in a container.",
)


@contextmanager
def kernel_errors() -> Iterator[None]:
    """Turn an OSError, which the kernel may return at any place, into a TracefsError."""
    try:
        yield
    except OSError as error:
        raise TracefsError(f"unexpected error from the kernel: {error}.") from error


def tell(sentence: str) -> None:
    """Write a sentence for the user to stderr."""
    click.echo(f"kprobe-exporter: {one_line(sentence)}", err=True)
