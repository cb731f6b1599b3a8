"""The type of a parser to fuzz: its material, and its answers to wrong bytes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Reader(NamedTuple):
    """``read`` gets the bytes and a directory for files, and returns whether it found something in the bytes.

    ``refusals`` are the exceptions that the parser documents.
    """

    material: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...] = ()
    words: tuple[bytes, ...] = ()
