"""The load: a script of operations for load.c, and the calls that it says it made."""

import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.compiling import compiled
from tests.support.patience import patience

SOURCE = Path(__file__).with_name("load.c")

SECONDS = 60
"""The most that one load takes on an idle machine."""


class Operation(NamedTuple):
    """One line of a script: what a thread does, with two numbers and a text."""

    thread: int
    name: str
    a: int = 0
    b: int = 0
    text: bytes = b""

    def line(self) -> str:
        return f"{self.thread} {self.name} {self.a} {self.b} {self.text.hex() or '-'}"


class Firing(NamedTuple):
    """One call that the load made; ``role`` says which of its two events happened.

    It began after ``begin``, ended before ``end`` and took at least ``least``, all in nanoseconds of
    CLOCK_MONOTONIC.
    """

    point: str
    role: str
    a: int
    b: int
    text: bytes
    tid: int
    cpu: int
    begin: int
    least: int
    end: int
    result: int
    comm: bytes

    @property
    def enters(self) -> bool:
        return self.role in ("call", "entry")

    @property
    def returns(self) -> bool:
        return self.role in ("call", "return")


def script(operations: Iterable[Operation]) -> str:
    """The text that load.c reads."""
    return "".join(f"{operation.line()}\n" for operation in operations)


def parse(record: str, operations: Sequence[Operation]) -> list[Firing]:
    """The calls of a record, in the order in which they began. The texts are those of the script."""
    firings = []
    for line in record.splitlines():
        number, point, role, *numbers, comm = line.split(" ")
        a, b, tid, cpu, begin, least, end, result = map(int, numbers)
        text = operations[int(number)].text if int(number) >= 0 else b""
        firings.append(
            Firing(point, role, a, b, text, tid, cpu, begin, least, end, result, bytes.fromhex(comm))
        )
    return sorted(firings, key=lambda firing: firing.begin)


@dataclass(frozen=True)
class Load:
    """The compiled program."""

    program: Path

    @classmethod
    def build(cls, directory: Path) -> "Load":
        return cls(compiled(directory / "load", SOURCE.read_text(), "-pthread"))

    def run(self, operations: Sequence[Operation]) -> list[Firing]:
        """Run a script to its end, and return the calls that it made."""
        done = subprocess.run(
            [self.program, str(time.monotonic_ns())],
            input=script(operations),
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(SECONDS),
        )
        if done.returncode or done.stderr:
            pytest.fail(f"the load ended with status {done.returncode}: {done.stderr}")
        return parse(done.stdout, operations)
