"""Fuzzes what reads /proc, tracefs' files, BTF, and names of containers and pods."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from random import Random

from tests.fuzz import readers_of_files, readers_of_kernel, readers_of_proc
from tests.fuzz.mutate import Mutator
from tests.fuzz.reader import Reader
from tests.fuzz.target import Input, Take, Target, scratch

READERS: Mapping[str, Reader] = {
    **readers_of_kernel.READERS,
    **readers_of_proc.READERS,
    **readers_of_files.READERS,
}
"""All readers by the kind of text."""


@cache
def mutator(what: str) -> Mutator:
    reader = READERS[what]
    return Mutator(reader.material(), reader.words)


def make(random: Random) -> Input:
    what = random.choice(list(READERS))
    return Input(what, mutator(what)(random))


@contextmanager
def taking() -> Iterator[Take]:
    with scratch() as directory:

        def take(given: Input) -> bool:
            reader = READERS[given.what]
            try:
                return bool(reader.read(given.data, directory))
            except reader.refusals:
                return False

        yield take


TARGET = Target("proc-texts", make, taking)
