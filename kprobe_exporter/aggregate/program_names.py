"""Labels that are addresses in programs: sums wait until their functions are known."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeAlias

from kprobe_exporter.aggregate.numbers import Take
from kprobe_exporter.model.aggregation import Tally
from kprobe_exporter.model.specs import MetricSpec

UNKNOWN = b"[unknown]"
_ADDRESS = (1 << 64) - 1

Named: TypeAlias = Callable[[Sequence[bytes]], object]


class ProgramNames(Protocol):
    """What finds the functions at addresses of a process, and calls ``then`` with their names, soon.

    It returns False if too many wait: then it never calls it. Another thread may be the one that calls.
    """

    def name(self, process: int, addresses: Sequence[int], then: Named) -> bool: ...


def named(
    take: Take, spec: MetricSpec, programs: ProgramNames | None, lock: AbstractContextManager[object]
) -> Take:
    """Return the function that takes a tally whose last key is the process of the addresses among its labels.

    It hands the tally, with names and without the process, to ``take`` under the lock, later if the names
    have to be looked up. Without ``programs``, as where the processes have long ended, they are unknown.
    """
    labels = spec.of_program
    if not labels:
        return take

    def taken(tally: Tally) -> None:
        *key, process = tally.key
        found = {index: key[index] for index in labels}
        numbers = {index: value & _ADDRESS for index, value in found.items() if isinstance(value, int)}
        then = partial(_take, take, tally._replace(key=tuple(key)), tuple(numbers), lock)
        asked = False
        if numbers and programs is not None and isinstance(process, int) and process > 0:
            asked = programs.name(process, tuple(numbers.values()), then)
        if not asked:
            then([UNKNOWN] * len(numbers))

    return taken


def _take(
    take: Take,
    tally: Tally,
    indices: Sequence[int],
    lock: AbstractContextManager[object],
    names: Sequence[bytes],
) -> None:
    key = list(tally.key)
    for index, name in zip(indices, names, strict=True):
        key[index] = name
    with lock:
        take(tally._replace(key=tuple(key)))
