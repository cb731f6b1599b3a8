"""The type of a fuzz target: how its inputs are made, and what reads them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build/fuzz"
"""The directory of inputs that crashed, and of material, which is made again if missing."""


class Input(NamedTuple):
    """One input: a word that names the reader in the target, and the bytes."""

    what: str
    data: bytes


Take: TypeAlias = Callable[[Input], bool]
"""Reads an input and returns whether it was accepted. An exception is a crash."""


@dataclass(frozen=True)
class Target:
    """Code that reads bytes from outside. ``make`` depends on the random number generator alone.

    ``taking`` prepares the reader; it is entered in a separate process.
    """

    name: str
    make: Callable[[Random], Input]
    taking: Callable[[], AbstractContextManager[Take]]
