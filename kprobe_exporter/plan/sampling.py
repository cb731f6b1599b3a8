"""Sampling: a plan narrowed to the events of some threads, for a probe that fires too often to record all."""

import random
from dataclasses import dataclass, replace

from kprobe_exporter.model.values import ProbeSpec, Unsupported
from kprobe_exporter.plan.joined import JoinedSpec
from kprobe_exporter.plan.probe import Alternative, ProbePlan

NO_THREAD = "common_pid < 0"  # no event passes it: only hits are counted then


@dataclass(frozen=True, slots=True)
class Sample:
    """The threads whose id has the remainder ``chosen`` when divided by ``one_in``, a power of two.

    It is a part of the threads, not of the events, so that both halves of a call are recorded or none. The
    remainder is drawn anew each time, so that a process cannot take a thread id that is never recorded.
    """

    one_in: int
    chosen: int

    @classmethod
    def drawn(cls, one_in: int) -> "Sample":
        return cls(one_in, random.SystemRandom().randrange(one_in))

    @property
    def condition(self) -> str:
        """The kernel's filter for it. The kernel's ``&`` is true if any bit is common
        (kernel/trace/trace_events_filter.c), so each bit is compared on its own."""
        bits = (1 << bit for bit in range(self.one_in.bit_length() - 1))
        return " && ".join(
            f"common_pid & {bit}" if self.chosen & bit else f"!(common_pid & {bit})" for bit in bits
        )

    def ratio(self, spec: ProbeSpec | JoinedSpec) -> float:
        """Return the share of the threads whose events are recorded, 0 to 1."""
        if spec.plan != "events":
            return 1.0
        return 1 / self.one_in if _in_one_thread(spec) else 0.0


def narrowed(plan: ProbePlan, sample: Sample) -> ProbePlan:
    """Return the plan with only the sample's events recorded. What the kernel counts or adds up stays whole.

    A pair whose events may come from two threads has none of its events recorded.
    """
    return plan._replace(alternatives=tuple(_narrowed(way, sample) for way in plan.alternatives))


def _narrowed(way: Alternative, sample: Sample) -> Alternative:
    if isinstance(way, Unsupported) or way.plan != "events":
        return way
    if isinstance(way, ProbeSpec):
        return replace(way, sample=sample.condition)
    condition = sample.condition if _in_one_thread(way) else NO_THREAD
    ways = (
        tuple(one if isinstance(one, Unsupported) else replace(one, sample=condition) for one in half)
        for half in way.ways
    )
    return replace(way, ways=tuple(ways))


def _in_one_thread(spec: ProbeSpec | JoinedSpec) -> bool:
    """Whether all events of one record come from one thread."""
    return isinstance(spec, ProbeSpec) or spec.by != "key" or "tid" in spec.key
