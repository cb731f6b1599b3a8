"""Draws a case from a seed: probes, a load, and the probes and the load after a reload."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from tests.kernel.differential.draw_probes import ProbeDrawing
from tests.kernel.differential.known import KNOWN
from tests.kernel.differential.load import Operation
from tests.kernel.differential.operations import OperationDrawing
from tests.kernel.differential.probes import Probe

NUMBERS = (1, 1, 1, 2, 2, 3)
"""How many probes a case has; installing them takes most of the time of a run."""
MOST_AT_ONCE = 50
"""Cases that one load has room for."""
THREADS = 3
"""Threads of a case; those of several cases in one load have different numbers."""


@dataclass(frozen=True)
class Phase:
    """The probes of one configuration, and the load that runs under it."""

    probes: tuple[Probe, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Case:
    """Two phases, with a reload in between."""

    seed: int
    phases: tuple[Phase, Phase]


def draw(seed: int, *, fprobes: bool, eprobes: bool = True, excluded: Collection[str] = KNOWN) -> Case:
    """Draw a case. ``excluded`` names the known faults that it stays clear of."""
    random = Random(seed)
    drawing = ProbeDrawing(random, fprobes=fprobes, eprobes=eprobes, excluded=excluded)
    probes = [drawing.probe(f"k{seed}_{number}") for number in range(random.choice(NUMBERS))]
    later = [drawing.changed(probe) for probe in probes]
    after = [probe for probe in later if probe is not None]
    if random.random() < 0.2:
        after.append(drawing.probe(f"k{seed}_{len(probes)}"))
    points = {point for probe in (*probes, *after) for point in probe.points}
    loads = OperationDrawing(random, sorted(points), excluded)
    phases = [Phase(tuple(probes), loads.operations(0)), Phase(tuple(after), loads.operations(1))]
    return Case(seed, (phases[0], phases[1]))


LAST = Operation(MOST_AT_ONCE * THREADS, "take_value")
"""The end of every load: losses are told with the next event, and the probe `resident` has one here."""


def merged(cases: Collection[Case], phase: int) -> Phase:
    """One phase of several cases, as one configuration and one load."""
    probes: list[Probe] = []
    operations: list[Operation] = []
    for number, case in enumerate(cases):
        probes += case.phases[phase].probes
        operations += [
            replaced(operation, number * THREADS + operation.thread)
            for operation in case.phases[phase].operations
        ]
    return Phase(tuple(probes), (*operations, LAST))


def joint(cases: Sequence[Case]) -> Case:
    """Several cases as one, with the seed of the first. A load fires the probes of all cases."""
    first, second = (merged(cases, phase) for phase in (0, 1))
    phases = [Phase(phase.probes, phase.operations[:-1]) for phase in (first, second)]
    return Case(cases[0].seed, (phases[0], phases[1]))


def replaced(operation: Operation, thread: int) -> Operation:
    """The same operation in another thread. The keys of pairs are those of one thread of one case."""
    if operation.name in ("pair_begin", "pair_end"):
        return operation._replace(thread=thread, a=1000 * thread + operation.a % 1000)
    return operation._replace(thread=thread)
