"""Probes put in one after the other, in rounds, and what each of them costs in every round."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager


def in_rounds(
    probes: Mapping[str, Callable[[], AbstractContextManager[object]]],
    rounds: int,
    nanoseconds: Callable[[], float],
) -> dict[str, list[float]]:
    """Return the nanoseconds of every round, by probe, and print those of each round at its end."""
    found: dict[str, list[float]] = {}
    for number in range(1, rounds + 1):
        for name, probe in probes.items():
            with probe():
                found.setdefault(name, []).append(nanoseconds())
        latest = ", ".join(f"{name} {figures[-1]:.0f}" for name, figures in found.items())
        print(f"round {number} of {rounds}, ns: {latest}", flush=True)
    return found
