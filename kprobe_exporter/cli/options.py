"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def config_option(text: str) -> Callable[[Command], Command]:
    """Return the repeatable option ``--config FILE|DIR``; ``text`` is its help."""
    return click.option(
        "--config",
        "paths",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE|DIR",
        help=text,
    )


def tracefs_option() -> Callable[[Command], Command]:
    """Return the option ``--tracefs PATH``."""
    return click.option(
        "--tracefs",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="The tracefs to use, instead of the mounted one, as /tracefs in a container.",
    )
