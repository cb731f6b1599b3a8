"""Fuzzes the reader of programs and libraries, with files that have holes behind their last byte."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

from kprobe_exporter.elf import functions, locate
from kprobe_exporter.elf.budget import MOST_SECONDS
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.util.overruns import OVERRUNS
from kprobe_exporter.util.rooted_path import ProbedFiles
from tests.fuzz.material import crafted, programs
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Input, Take, Target, scratch

SYMBOLS = ("twice", "answer", "answer@VERS_1", "forgotten", "puts", "late", "table", "nobody", "")

HOLES = (*[0] * 29, 1 << 16, 1 << 28, 1 << 40)
"""Bytes that a file has behind those that are written, without taking space on a disk; mostly none."""

MOST_NAMES = 1000

SLACK = 1.0
"""Seconds by which the questions may take longer than its budget, which is looked at between reads."""


@cache
def mutator() -> Mutator:
    return Mutator([*programs(), crafted()])


def make(random: Random) -> Input:
    return Input("elf", mutator()(random))


def read(data: bytes, directory: Path) -> bool:
    """Ask for some functions, as one plan does, and return whether one was found. The time is bounded."""
    file, drawn = directory / "program", Random(data)
    file.write_bytes(data)
    os.truncate(file, len(data) + drawn.choice(HOLES))
    asked = ("main", *drawn.sample(SYMBOLS, 2))
    found, began = False, time.process_time()
    OVERRUNS.clear()  # each input has the same inode
    with closing(ProbedFiles()) as files:
        questions: list[Callable[[], object]] = [
            *(lambda name=name: locate(parse_target(f"uprobe:{file}:{name}"), files) for name in asked),
            lambda: list(islice(functions(str(file), files), MOST_NAMES)),
            lambda: locate(parse_target(f"uretprobe:{file}:main"), files),
        ]
        for number, ask in enumerate(questions):
            with suppress(GrammarError):
                ask()
                found |= number < len(asked)
    assert time.process_time() - began < MOST_SECONDS + SLACK
    return found


@contextmanager
def taking() -> Iterator[Take]:
    with scratch() as directory:
        yield lambda given: read(given.data, directory)


TARGET = Target("elf", make, taking)
