"""What counted stacks take: memory, a hit, and the outlets that show them."""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import NamedTuple

from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.stack_counts import StackCounts
from kprobe_exporter.export.stacks.flame_graph import flame_graph
from kprobe_exporter.export.stacks.folded import folded
from kprobe_exporter.export.stacks.pprof import pprof
from kprobe_exporter.model.stacks import Frames, Place, Profile, Stack, Weight
from tests.bench.table import Table

TITLE = "Counted stacks"
SIZES = (100, 1_000, 10_000)
FUNCTIONS = 4_000
"""Names among which those of the frames are drawn."""

CALLED = 3
"""Functions that each one may call, so that stacks have their outer frames in common, as real ones do."""

DEPTH, IN_PROGRAM = 16, 8
"""Frames of the kernel and of a program: as many as a hist trigger keeps, and as many as it follows."""

HITS = 200_000
ROUNDS = 5


class Made(NamedTuple):
    """The stacks of one row, and the bytes that counting them has taken."""

    counts: StackCounts
    stacks: list[tuple[Stack, Frames]]
    memory: int


def table() -> Table:
    rows = [row(size, user) for user in (False, True) for size in SIZES]
    return Table(
        TITLE,
        f"Stacks of {DEPTH} functions of the kernel, each of which calls one of {CALLED}, without and with"
        f" {IN_PROGRAM} places in a program; no two are the same, and only the outermost are shared."
        f" In one process, the fastest of {ROUNDS} rounds.",
        ("stacks", "memory", "a hit", "named", "folded text", "flame graph", "profile for pprof"),
        tuple(rows),
        (
            "A hit is what the agent takes to count one more with a stack that it knows and whose frames are"
            " there. The agent reads stacks that the kernel counts only for a request.",
            "Named is the step from what is counted to functions, where those of programs are known already.",
        ),
    )


def row(size: int, user: bool) -> tuple[str, ...]:
    """Measure so many stacks. Raises RuntimeError if one of their hits is missing."""
    made = counted(size, user)
    each = min(_seconds(lambda: _count(made)) for _ in range(ROUNDS)) / HITS
    profile = made.counts.profile(names)
    if (profile.hits, profile.lost, len(profile.stacks)) != (size + ROUNDS * HITS, 0, size):
        raise RuntimeError(
            f"{size} stacks were made, and counted are {profile.hits} hits in {len(profile.stacks)}"
        )
    outlets: Iterable[Callable[[Profile], bytes]] = (folded, flame_graph, pprof)
    shown = [f"{_fastest(lambda: made.counts.profile(names)) * 1e3:.1f} ms"]
    for outlet in outlets:
        seconds = _fastest(lambda outlet=outlet: outlet(profile))  # type: ignore[misc]
        shown.append(f"{seconds * 1e3:.1f} ms, {len(outlet(profile)) / 1000:,.0f} kB")
    kind = "and of the program" if user else "of the kernel"
    return (f"{size:,} {kind}", f"{made.memory / 1e6:.2f} MB", f"{each * 1e6:.2f} µs", *shown)


def counted(size: int, user: bool) -> Made:
    """Count each of so many stacks once."""
    random = Random(size)
    functions = [b"function_of_the_kernel_%d" % number for number in range(FUNCTIONS)]
    found: dict[tuple[Stack, Frames], None] = {}
    while len(found) < size:
        kernel = tuple([functions[number] for number in path(random, DEPTH)])
        places = [Place(1, 16 * number, b"[program]") for number in path(random, IN_PROGRAM * user)]
        found[kernel, tuple(places)] = None
    stacks = list(found)
    counts = StackCounts("bench", None, size, SeriesLimits(1, 1, ttl=0))
    gc.collect()
    tracemalloc.start()
    for kernel, places_of_one in stacks:
        # Each stack is a new object, as of a new event; the names of functions are shared, as they are there.
        counts.add((*kernel,), Weight(1, 0), tuple([Place(*one) for one in places_of_one]))
    gc.collect()
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Made(counts, stacks, memory)


def path(random: Random, depth: int) -> list[int]:
    """Return the numbers of functions, innermost first."""
    at, found = 0, list[int]()
    for _ in range(depth):
        at = (CALLED * at + random.randrange(CALLED)) % FUNCTIONS
        found.append(at)
    return found[::-1]


def names(places: Iterable[Place]) -> Mapping[Place, bytes]:
    return {place: b"program`function_%d" % (place.offset // 16) for place in places}


def _count(made: Made) -> None:
    counts, stacks, one = made.counts, made.stacks, Weight(1, 0)
    size = len(stacks)
    for number in range(HITS):
        kernel, places = stacks[number % size]
        counts.add(kernel, one, places)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _fastest(call: Callable[[], object]) -> float:
    return min(_seconds(call) for _ in range(ROUNDS))
