"""Fuzzes the reader of programs and libraries, with files that have holes behind their last byte."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from kprobe_exporter.elf import functions, locate
from kprobe_exporter.elf.budget import MOST_SECONDS
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from tests.fuzz.material import crafted, programs
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Input, Take, Target
from tests.support.programs import file_offset

SYMBOLS = ("twice", "answer", "answer@VERS_1", "forgotten", "puts", "late", "table", "nobody", "")

HOLES = (*[0] * 29, 1 << 16, 1 << 28, 1 << 40)
"""Bytes that a file has behind those that are written, without taking space on a disk; mostly none."""

MOST_NAMES = 1000

SLACK = 1.0
"""Seconds by which a question may take longer than its budget, which is looked at between reads."""


@cache
def mutator() -> Mutator:
    return Mutator([*programs(), crafted()])


def make(random: Random) -> Input:
    return Input("elf", mutator()(random))


def read(data: bytes, directory: Path) -> bool:
    """Ask for some functions, and return whether one was found. Each question has a bounded time."""
    file, drawn = directory / "program", Random(data)
    file.write_bytes(data)
    os.truncate(file, len(data) + drawn.choice(HOLES))
    asked = ("main", *drawn.sample(SYMBOLS, 2))
    questions: list[Callable[[], object]] = [
        *(lambda symbol=symbol: file_offset(str(file), symbol) for symbol in asked),
        lambda: list(islice(functions(str(file)), MOST_NAMES)),
        lambda: locate(parse_target(f"uretprobe:{file}:main")),
    ]
    found = False
    for number, ask in enumerate(questions):
        began = time.thread_time()
        with suppress(GrammarError):
            ask()
            found |= number < len(asked)
        assert time.thread_time() - began < MOST_SECONDS + SLACK
    return found


@contextmanager
def taking() -> Iterator[Take]:
    with TemporaryDirectory() as directory:
        yield lambda given: read(given.data, Path(directory))


TARGET = Target("elf", make, taking)
