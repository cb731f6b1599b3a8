"""A flood of events in a small buffer, and what is lost of it."""

import signal
import time
from collections.abc import Callable

from tests.support.agent_process import AgentProcess, Metrics
from tests.support.patience import eventually

FLOOD = 100_000
MOST_FLOODS = 3


def flooded(agent: AgentProcess, flood: Callable[[], object]) -> tuple[int, Metrics]:
    """Flood until something is lost, and return how many events that made, and what the agent then says.

    An agent may be faster than a flood, so that it is stopped during the last one.
    """
    for number in range(1, MOST_FLOODS + 1):
        last = number == MOST_FLOODS
        if last:
            agent.signal(signal.SIGSTOP)
        try:
            flood()
        finally:
            if last:
                agent.signal(signal.SIGCONT)
        metrics = settled(agent)
        if losses(metrics) > 0:
            break
    return number * FLOOD, metrics


def losses(metrics: Metrics) -> float:
    return sum(
        metrics.value("kprobe_exporter_events_lost_total", reason=reason)
        for reason in ("overrun", "commit_overrun", "dropped")
    )


def settled(agent: AgentProcess) -> Metrics:
    """Scrape until nothing more comes; the flood must be over when this is called.

    Two reads of the kernel's counts, both after the flood, must agree. A scrape may show counts from before,
    because the agent reads them at most once a second, and less often on a busy machine. The buffer must be
    empty, or nothing changes for QUIET seconds: the kernel's count of bytes may stay above 0 (seen once, on
    6.12).
    """
    read = changed = time.monotonic()
    found: list[Metrics] = []

    def same() -> bool:
        nonlocal read, changed
        asked = time.monotonic()
        metrics = agent.scrape()
        age = metrics.value(AGE)
        if asked - age <= read:
            return False  # it may be the same read as before, or have begun during the flood
        read = time.monotonic() - age
        found.append(metrics)
        last_two = found[-2:]
        if len(last_two) < 2 or len({_counts(metrics) for metrics in last_two}) > 1:
            changed = time.monotonic()
            return False
        empty = all(metrics.value("kprobe_exporter_ring_buffer_bytes") == 0 for metrics in last_two)
        return empty or time.monotonic() - changed > QUIET

    eventually(same, 60)
    return found[-1]


def _counts(metrics: Metrics) -> tuple[float, ...]:
    """Return the values that a flood changes."""
    names = ("kprobe_hits_total", "kprobe_exporter_events_total")
    counts = (metrics.value(name, probe="flood") for name in names)
    return (*counts, losses(metrics), metrics.value("kprobe_exporter_events_lost_total", reason="unpaired"))


AGE = "kprobe_exporter_kernel_read_age_seconds"

QUIET = 5.0
"""Seconds without a change, after which the flood is taken to be read."""
