"""The type of a fuzz target: how its inputs are made, what reads them, and what an input may cost."""

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
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


class Line(NamedTuple):
    """The most that reading an input may cost: so much for any, and so much more for each MiB of it."""

    seconds: float
    """Of processor time, by all threads."""
    seconds_per_mib: float
    megabytes: float
    """By which the process has grown, at most and since its start."""
    megabytes_per_mib: float


@contextmanager
def spending(line: Line, size: int) -> Iterator[None]:
    """Raise AssertionError if the context's body costs more than the line allows for an input of this size.

    An input that needs as much memory as an earlier one is not seen to do so: the kernel tells the peak of a
    process alone. So the limit of an input is for what the process grows by.
    """
    mib, began, peak = size / (1 << 20), time.process_time(), _peak_mb()
    try:
        yield
    finally:
        seconds, grown = time.process_time() - began, _peak_mb() - peak
        most_seconds = line.seconds + line.seconds_per_mib * mib
        most_mb = line.megabytes + line.megabytes_per_mib * mib
        assert seconds <= most_seconds, f"{size} bytes took {seconds:.1f} s, more than {most_seconds:.1f} s"
        assert grown <= most_mb, f"{size} bytes took {grown:.0f} MB, more than {most_mb:.0f} MB"


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory for files of inputs: in memory, as a disk would take most of the time."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


@dataclass(frozen=True)
class Target:
    """Code that reads bytes from outside. ``make`` depends on the random number generator alone.

    ``taking`` prepares the reader; it is entered in a separate process.
    """

    name: str
    make: Callable[[Random], Input]
    taking: Callable[[], AbstractContextManager[Take]]
