"""One of many parsers: what it is fed with, and how it answers wrong bytes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Reader(NamedTuple):
    """``read`` gets the bytes and a directory for files, and gives whether something was found in them.

    ``refusals`` are the exceptions that the parser documents.
    """

    material: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...] = ()
    words: tuple[bytes, ...] = ()
