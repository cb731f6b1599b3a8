"""The data by which a source joins calls and pairs itself."""

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.aggregation import Recipe
from kprobe_exporter.model.records import Join, Record
from kprobe_exporter.model.thread_times import SCHEDULER_EVENTS, Follow, ThreadTimesPlan

DISTANCE = 8 if platform.machine() == "x86_64" else 0
"""Bytes by which a return's stack pointer is above its entry's, until returns show another distance: those of
the return address, which a call of x86-64 pushes."""


Steps: TypeAlias = Sequence[int | None]
"""The nanoseconds from the first half of a pair to each of its steps, None for one that did not occur."""


class JoinRecipe(NamedTuple):
    """A join, and everything to add up from its joined records.

    ``make`` makes the joined record of two halves that belong together and of the times of the steps between
    them, for the recipe's choice.
    """

    join: Join
    recipe: Recipe
    make: Callable[[Record, Record, Steps], Record] | None = None


class ThreadEvent(NamedTuple):
    """A tracepoint about threads, which may end open calls, or change the cgroup of a thread.

    ``fields`` names what it tells: of ``started`` the child's id and the flags of clone(), of ``executed``
    the id that the thread had before. An exit tells no more than its thread. After ``placed``, the child that
    it names has another cgroup than an earlier thread of that id; after ``moved``, any thread may have.
    """

    kind: Literal["started", "executed", "exited", "placed", "moved"]
    fields: tuple[str, ...] = ()


class Joins(NamedTuple):
    """The joins of a source by the joined layout's id, the events about threads by layout_id, and how the
    time of threads is added up."""

    recipes: Mapping[int, JoinRecipe] = {}
    threads: Mapping[int, ThreadEvent] = {}
    times: ThreadTimesPlan | None = None


def times_plan(join: Join, follows: frozenset[Follow], *, by_cgroup: bool) -> ThreadTimesPlan:
    """Return how a source adds up the time of threads from the events of a join by ``time``."""
    events = {one.layout_id: SCHEDULER_EVENTS[one.symbol] for one in (*join.begins, join.end)}
    return ThreadTimesPlan(events, follows, by_cgroup)
