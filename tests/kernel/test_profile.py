"""`tool profile` samples where the CPUs are; the accounting of the kernel is the oracle."""

import ctypes
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from math import sqrt
from pathlib import Path

import pytest

from kprobe_exporter.cli import tool as _tool  # noqa: F401 - imported once, inherited by every child
from tests.kernel.workload import Child
from tests.support.trace_process import traces

SECONDS = 3.0
NICENESS = {b"burn one": 0, b"burn`two": 5, b"burn;three": 0}
"""The names of the processes, which share one CPU, and their niceness. The last one burns in the kernel."""


def burning(name: bytes, niceness: int) -> Callable[[], None]:
    def work() -> None:
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        os.sched_setaffinity(0, {0})
        os.nice(niceness)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if b"three" in name:
                os.getrandom(1 << 16)
            else:
                sum(range(10_000))

    return work


def burned(pid: int) -> float:
    """The processor seconds that the kernel charged to a process so far."""
    fields = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


@pytest.mark.needs("initial_pid_namespace")
def test_shares_of_processes(tmp_path: Path) -> None:
    """Each process has as many samples as its share of the processor time, within the binomial error."""
    children = {name: Child(burning(name, niceness)) for name, niceness in NICENESS.items()}
    with traces(tmp_path) as start:
        profile = start("profile", command="tool")
        profile.wait_until_enabled(tracepoints=["irq_vectors/local_timer_entry"])
        before = {name: burned(child.pid) for name, child in children.items()}
        for child in children.values():
            child.begin()
        time.sleep(SECONDS * 0.9)
        seconds = {name: burned(child.pid) - before[name] for name, child in children.items()}
        profile.signal(signal.SIGINT)
        assert profile.wait() == 0, profile.errors
        lines = profile.output.decode().splitlines()
    for child in children.values():
        child.close()
    samples = Counter[str]()
    kernel = Counter[str]()
    for line in lines:
        stack, _, number = line.rpartition(" ")
        root, *frames = stack.split(";")
        samples[root] += int(number)
        # The tick may come into a softirq over another interrupt, but nothing of the tick itself is left.
        assert not any(re.fullmatch("update_process_times|tick_.*|hrtimer_interrupt", one) for one in frames)
        if any("random" in one for one in frames):
            kernel[root] += int(number)
    shown = {b"burn one": "burn_one", b"burn`two": "burn'two", b"burn;three": "burn_three"}
    found = {name: samples[root] for name, root in shown.items()}
    everything, spent = sum(found.values()), sum(seconds.values())
    assert everything > 100
    for name, hits in found.items():
        share = seconds[name] / spent
        assert abs(hits / everything - share) <= 4 * sqrt(share * (1 - share) / everything) + 0.02, found
    assert kernel["burn_three"] > 0.5 * samples["burn_three"]
