"""The reason for which a thread sleeps: the class of its kernel stack, by a table of functions."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.aggregate.stack_counts import cut
from kprobe_exporter.model.stacks import Stack
from kprobe_exporter.model.thread_times import ThreadState, ThreadTime

TABLE = Path(__file__).with_name("stack_classes.txt")

RUNNING, WAITING = "running", "waiting_for_cpu"
"""The classes of a thread that has a CPU, and of one that could run and has none."""

RECLAIM, THROTTLED = "reclaim", "throttled"
"""The class of a thread that makes room in memory, and of one that waits as its cgroup has no quota left."""

OTHER, UNACCOUNTED = "other", "unaccounted"
"""The classes of a stack that no function of the table is in, and of time about which too little is known."""

OF_STATE: Mapping[ThreadState, str] = {
    ThreadState.RUNNING: RUNNING,
    ThreadState.WAITING: WAITING,
    ThreadState.UNKNOWN: UNACCOUNTED,
    ThreadState.RECLAIMING: RECLAIM,
    ThreadState.THROTTLED: THROTTLED,
}
"""The classes of threads that do not sleep."""

SOMETIMES = "-"
"""Follows the name of a function that a kernel may lack, because it is built without it or inlines it."""


class ClassRow(NamedTuple):
    """A class, and the names of one function: a kernel has one of them, or perhaps none if it is ``rare``."""

    name: str
    functions: tuple[bytes, ...]
    rare: bool


def parse_table(text: str) -> Iterator[ClassRow]:
    """Yield the rows of a table: a line has a class and then names, behind which ``-`` may stand."""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            name, *functions = words
            rare = SOMETIMES in functions
            yield ClassRow(name, tuple(one.encode() for one in functions if one != SOMETIMES), rare)


@lru_cache(1)
def class_table() -> Mapping[bytes, str]:
    """Return the classes of functions. Raises OSError if the table is missing."""
    return {function: row.name for row in parse_table(TABLE.read_text()) for function in row.functions}


def class_names() -> list[str]:
    """Return all classes of the table, in its order."""
    return list(dict.fromkeys(class_table().values()))


@lru_cache(1 << 14)
def stack_class(stack: Stack) -> str:
    """Return the class of a stack, whose innermost frame is first: that of the outermost function known.

    A suffix that a compiler gave a function, such as ``.constprop.0``, does not matter.
    """
    table = class_table()
    for frame in reversed(stack):
        if (found := table.get(frame.partition(b".")[0])) is not None:
            return found
    return OTHER


def class_of_seen(stack: Stack) -> str:
    """Return the class of a thread that sleeps in this stack, which is empty if it may not be read."""
    return stack_class(stack) if stack else UNACCOUNTED


def class_of(part: ThreadTime) -> str:
    """Return the class of a part of a thread's time."""
    if part.state is not ThreadState.ASLEEP:
        return OF_STATE[part.state]
    if part.stack is None:
        return part.reason or UNACCOUNTED
    return stack_class(cut(part.stack))
