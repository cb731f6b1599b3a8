"""Makes a failing case smaller by steps that a person would try, while it still fails."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.kernel.differential.cases import Case, Phase
from tests.kernel.differential.probes import Probe

Item = TypeVar("Item")

MOST_ATTEMPTS = 60


def shrink(case: Case, fails: Callable[[Case], bool], attempts: int = MOST_ATTEMPTS) -> Case:
    """Return the smallest case found: every step that still fails is taken, until none does."""
    tried = 0
    while True:
        for smaller in steps(case):
            if tried == attempts:
                return case
            tried += 1
            if fails(smaller):
                case = smaller
                break
        else:
            return case


def narrowed(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> Sequence[Item]:
    """Return the failing half of the failing half and so on; more than one item if no half fails alone."""
    while len(items) > 1:
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            if fails(half):
                items = half
                break
        else:
            return items
    return items


def steps(case: Case) -> Iterator[Case]:
    """The smaller cases to try, the greatest steps first."""
    first, second = case.phases
    nothing = Phase(second.probes, ())
    if second.operations:
        yield Case(case.seed, (first, nothing))
    if first.operations:
        yield Case(case.seed, (replace(first, operations=()), second))
    names = dict.fromkeys(probe.name for phase in case.phases for probe in phase.probes)
    for some in fewer([*names]):
        yield with_probes(case, some)
    for number, phase in enumerate(case.phases):
        for operations in fewer(phase.operations):
            yield _with(case, number, replace(phase, operations=operations))
    if first.probes != second.probes:
        yield Case(case.seed, (first, replace(second, probes=first.probes)))
    for probe in dict.fromkeys(probe for phase in case.phases for probe in phase.probes):
        for simpler in simplified(probe):
            yield _instead(case, probe, simpler)


def fewer(items: Sequence[Item]) -> Iterator[tuple[Item, ...]]:
    """Without a half, a quarter and so on, and at last without each one."""
    size = len(items) // 2 or len(items)
    while size:
        for begin in range(0, len(items), size):
            yield (*items[:begin], *items[begin + size :])
        size //= 2


def without_each(items: Sequence[Item]) -> Iterator[tuple[Item, ...]]:
    """Without one item."""
    for index in range(len(items)):
        yield (*items[:index], *items[index + 1 :])


def simplified(probe: Probe) -> Iterator[Probe]:
    """The same probe without one of its metrics, its filter, or a part of a metric."""
    for metrics in without_each(probe.metrics):
        yield replace(probe, metrics=metrics)
    if probe.filter is not None:
        yield replace(probe, filter=None)
    for index, metric in enumerate(probe.metrics):
        for simpler in (
            replace(metric, where=None),
            replace(metric, scale=1),
            *(replace(metric, labels=labels) for labels in without_each(metric.labels)),
        ):
            if simpler != metric:
                yield replace(probe, metrics=(*probe.metrics[:index], simpler, *probe.metrics[index + 1 :]))


def with_probes(case: Case, names: Collection[str]) -> Case:
    """The same case with only these probes, before and after its reload."""
    first, second = (
        replace(phase, probes=tuple(probe for probe in phase.probes if probe.name in names))
        for phase in case.phases
    )
    return Case(case.seed, (first, second))


def _with(case: Case, number: int, phase: Phase) -> Case:
    phases = [*case.phases]
    phases[number] = phase
    return Case(case.seed, (phases[0], phases[1]))


def _instead(case: Case, probe: Probe, other: Probe) -> Case:
    first, second = (
        replace(phase, probes=tuple(other if one == probe else one for one in phase.probes))
        for phase in case.phases
    )
    return Case(case.seed, (first, second))
