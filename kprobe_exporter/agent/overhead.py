"""The estimated time that probes cost the threads that hit them: firings times a measured constant."""

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kprobe_exporter.model.snapshot import Family
from kprobe_exporter.model.specs import ProbeSpec

TRACEPOINT = 60e-9
UPROBE = 3.0e-6
URETPROBE = 3.2e-6
COUNTED = 85e-9
KPROBE = 180e-9
KRETPROBE = 270e-9
FEXIT = 370e-9
TRIGGER = 170e-9
STACK = 1.5e-6
"""Seconds per firing (docs/benchmarks.md, "A firing"), measured on a real CPU where possible. Kernel
functions: measured under emulation and divided by 5, about the ratio seen for uprobes. The stack has six
functions."""

PAIR = 1.0e-6
"""The kernel joins a pair for this much more than its two events and its tables cost. Under emulation a call
took 7 to 9 µs in all, of which a fifth counts, as above."""

USER_STACK = 0.7e-6
"""The same for a program's stack of eight functions. Beside STACK it is what it was on another real CPU:
2.0 µs beside 4.3 µs."""

MARKER = 430e-9
"""Seconds that an event from a write to ``trace_marker`` takes where the constants above were measured."""

FASTEST, SLOWEST = 0.5, 4.0
"""The bounds of ``Machine.slowness``. A measurement of half a millisecond does not justify more."""

NAME = "kprobe_exporter_probe_overhead_seconds_total"
HELP = "Estimated time that the probe added to the threads that hit it: its firings, times a constant."


def cost(parts: Iterable[ProbeSpec]) -> float:
    """Return the seconds per hit. One event begins a hit: of several, the most expensive one counts."""
    parts = list(parts)
    begins = [_each(part) for part in parts if part.role not in ("end", "sum")]
    return max(begins, default=0.0) + sum(_each(part) for part in parts if part.role in ("end", "sum"))


def _each(part: ProbeSpec) -> float:
    stack = STACK if part.stack or part.stack_table is not None else 0.0
    user_stack = USER_STACK if part.layout.user_stack else 0.0
    return _without_stack(part) + stack + user_stack


def _without_stack(part: ProbeSpec) -> float:
    if part.plan == "count" and part.file == "kprobe_events":
        return COUNTED
    if part.role == "sum":
        return PAIR + len(part.tables) * TRIGGER
    if part.file is None:
        firing = TRACEPOINT
    elif part.file == "uprobe_events":
        firing = {"p": UPROBE, "r": URETPROBE}[part.verb[0]]
    elif part.verb.startswith("f") and "%return" in part.body:
        firing = FEXIT
    else:
        firing = {"p": KPROBE, "r": KRETPROBE, "e": TRACEPOINT + KPROBE, "f": KPROBE}[part.verb[0]]
    return firing + len(part.tables) * TRIGGER


class Machine(NamedTuple):
    """The machine's part in a limit that is a share of time: its CPUs, and by how much they are slower than
    ours."""

    cpus: int = 1
    slowness: float = 1.0

    @classmethod
    def measured(cls, marker: float | None) -> "Machine":
        """Return this machine, where an event of ``trace_marker`` takes so many seconds; None if unknown."""
        slowness = 1.0 if marker is None else min(max(FASTEST, marker / MARKER), SLOWEST)
        return cls(os.cpu_count() or 1, slowness)


class Overhead:
    """The estimate of each probe so far. One thread updates it, any thread may read it.

    It adds up increments, so that it never falls when a reload makes a probe cheaper.
    """

    def __init__(self) -> None:
        self._hits: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def update(self, hits: Mapping[str, int], costs: Mapping[str, float]) -> None:
        """Take the hits so far. ``costs`` are the seconds per hit of all current probes."""
        found = {}
        for name, each in costs.items():
            before = self._hits.get(name, 0)
            count = hits.get(name, before)
            # Fewer than before: another probe took its name between two calls.
            grown = count - before if count >= before else count
            found[name] = self._seconds.get(name, 0.0) + each * grown
            self._hits[name] = count
        for name in self._hits.keys() - costs.keys():
            del self._hits[name]
        self._seconds = found

    def family(self, probes: Iterable[str]) -> Family:
        """Return the estimates of ``probes``, the current ones; one added since the last update has 0."""
        seconds = self._seconds
        return Family(NAME, "counter", HELP, ("probe",), {(name,): seconds.get(name, 0.0) for name in probes})
