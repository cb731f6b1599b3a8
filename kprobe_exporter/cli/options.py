"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def config_option(text: str) -> Callable[[Command], Command]:
    """``--config FILE|DIR``, more than once if need be; ``text`` says what it is taken for."""
    return click.option(
        "--config",
        "paths",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE|DIR",
        help=text,
    )


def tracefs_option() -> Callable[[Command], Command]:
    """``--tracefs PATH``."""
    return click.option(
        "--tracefs",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="The tracefs to use, instead of the mounted one, as /tracefs in a container.",
    )
