"""What is fuzzed: how an input is made, and what takes it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build/fuzz"
"""Where inputs that crashed are kept, and material that is made anew where it is missing."""


class Input(NamedTuple):
    """``what`` of a target is to read it, a word; and the bytes."""

    what: str
    data: bytes


Take: TypeAlias = Callable[[Input], bool]
"""Reads an input: whether it was accepted. What it raises is a crash."""


@dataclass(frozen=True)
class Target:
    """Something that reads bytes of others. ``make`` depends on the generator alone.

    ``taking`` prepares what is needed, and is entered in a process of its own.
    """

    name: str
    make: Callable[[Random], Input]
    taking: Callable[[], AbstractContextManager[Take]]
