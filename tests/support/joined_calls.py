"""Naps, of which the kernel and the test know the time, and what is checked of joined calls."""

import ctypes
import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.support.agent_process import AgentProcess, Metrics

BOUNDS = (0.1, 0.2, 0.4, 0.8, 1.6)

SLEEPS = (0.15, 0.3, 0.6, 1.2)
"""Seconds, each in the middle of a bucket."""

LIBC = ctypes.CDLL(None)


class TimeSpec(ctypes.Structure):
    """A struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def nap(seconds: float) -> tuple[float, float]:
    """Sleep for a relative time in the kernel; return the least and the most seconds that it took.

    The call of time.sleep() may be shorter than the sleep, since its end is computed before.
    """
    wanted = TimeSpec(int(seconds), round(seconds % 1 * 1e9))
    began = time.monotonic()
    assert LIBC.clock_nanosleep(time.CLOCK_MONOTONIC, 0, ctypes.byref(wanted), None) == 0
    return seconds, time.monotonic() - began


@contextmanager
def nested_epolls(depth: int) -> Iterator[None]:
    """Put epoll sets into each other: for each one the kernel searches those within it, by recursion."""
    with ExitStack() as stack:
        inner = os.eventfd(0)
        stack.callback(os.close, inner)
        for _ in range(depth):
            outer = stack.enter_context(select.epoll())
            outer.register(inner, select.EPOLLIN)
            inner = outer.fileno()
        yield


def check(metrics: Metrics, name: str, naps: Sequence[tuple[float, float]], **labels: str) -> None:
    """Assert that each nap is in its bucket, or in a longer one if a loaded machine woke the thread late."""
    for bound in BOUNDS:
        count = metrics.value(f"{name}_bucket", le=str(bound), **labels)
        assert sum(most <= bound for _, most in naps) <= count <= sum(least <= bound for least, _ in naps)
    total = metrics.value(f"{name}_sum", **labels)
    assert sum(least for least, _ in naps) <= total <= sum(most for _, most in naps)
    assert metrics.value(f"{name}_count", **labels) == len(naps)


def lost(agent: AgentProcess) -> dict[str, float]:
    """Return the counts of lost events by reason, without those that are 0."""
    metrics = agent.scrape()
    every = metrics.labels("kprobe_exporter_events_lost_total")
    counts = {one["reason"]: metrics.value("kprobe_exporter_events_lost_total", **one) for one in every}
    return {reason: count for reason, count in counts.items() if count}
