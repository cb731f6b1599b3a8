"""Runs in the guest of `tests.bench.overhead`: what the two events of a call or a pair add to it, being read.

The guest's CPUs take turns on one of the machine's: a reader that is busy meanwhile would be measured with
the call. So calls come in bursts that fit into half a ring buffer, and the agent reads between them.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from kprobe_exporter.agent.agent import Agent
from kprobe_exporter.model.snapshot import HistogramValue, Snapshot
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.mount import mounted
from kprobe_exporter.tracefs.poller import MAX_AGE
from tests.bench.bpftrace import LIVE, SAYS_SO, bpftrace
from tests.bench.bursts import Bursts
from tests.bench.checks import Missed, require_all_told, saw_all
from tests.bench.probes import INSTANCE, configured
from tests.support.system_calls import function
from tests.vm.kernels import HIST

SYSTEM_CALL = "getppid"
FUNCTION = function(SYSTEM_CALL)
BURST = 5000
BURSTS = 12
ROUNDS = 3

AGENT = f"""
global: {{tracefs_instance: {INSTANCE}, limit: none}}
probes:
  - name: bench
    help: Calls.
    limit: none
    attach: %s
    aggregate: %s
"""
CALL_PROBE = f"call:sys_{SYSTEM_CALL}"
PAIR_PROBE = (
    f"{{pair: {{from: 'tracepoint:syscalls:sys_enter_{SYSTEM_CALL}',"
    f" to: 'tracepoint:syscalls:sys_exit_{SYSTEM_CALL}', key: tid}}}}"
)
MAPS = (
    "{first} {{ @s[tid] = nsecs; }}"
    " {last} /@s[tid]/ {{ @ = hist(nsecs - @s[tid]); delete(@s[tid]); }}"
    " END {{ clear(@s); clear(@live); }}"
)
BPF_CALL_PROGRAM = MAPS.format(first=f"kprobe:{FUNCTION}", last=f"kretprobe:{FUNCTION}")
BPF_PAIR_PROGRAM = MAPS.format(
    first=f"tracepoint:syscalls:sys_enter_{SYSTEM_CALL}", last=f"tracepoint:syscalls:sys_exit_{SYSTEM_CALL}"
)

NOTHING = "no probe"
CALL, KERNEL_CALL, BPF_CALL = "call", "kernel call", "bpftrace call"
PAIR, KERNEL_PAIR, BPF_PAIR = "pair", "kernel pair", "bpftrace pair"

Between = Callable[[], object] | None
"""What is waited for after a burst, if anything."""


@dataclass
class Found:
    """``ns`` of a call, of every round; of all that the agents saw ``made`` calls, ``lost`` are without a
    duration, ``told`` is what the agents told of that."""

    ns: dict[str, list[float]] = field(default_factory=dict)
    made: int = 0
    lost: int = 0
    told: int = 0


def measure() -> dict[str, Any]:
    """All rounds, as plain values. Raises Missed if a probe was not seen to count all calls."""
    found = Found()
    every = os.sched_getaffinity(0)
    reading, calling = min(every), max(every)
    os.sched_setaffinity(0, {reading})  # the agent, and bpftrace as well
    try:
        with Bursts(calling) as calls:
            calls.burst(BURST)
            for number in range(1, ROUNDS + 1):
                for name, probe in variants(calls, found).items():
                    with probe() as between:
                        found.ns.setdefault(name, []).append(nanoseconds(calls, between))
                latest = ", ".join(f"{name} {figures[-1]:.0f}" for name, figures in found.ns.items())
                print(f"bursts, round {number} of {ROUNDS}, ns: {latest}", flush=True)
    finally:
        os.sched_setaffinity(0, every)
    return asdict(found)


def variants(calls: Bursts, found: Found) -> Mapping[str, Callable[[], AbstractContextManager[Between]]]:
    """How each probe is put in for a while, by name."""
    every: dict[str, Callable[[], AbstractContextManager[Between]]] = {
        NOTHING: nullcontext,
        CALL: partial(joined, CALL_PROBE, "events", calls, found),
        KERNEL_CALL: partial(joined, CALL_PROBE, "kernel", calls, Found()),
        BPF_CALL: partial(mapped, BPF_CALL_PROGRAM),
        PAIR: partial(joined, PAIR_PROBE, "events", calls, found),
        KERNEL_PAIR: partial(joined, PAIR_PROBE, "kernel", calls, Found()),
        BPF_PAIR: partial(mapped, BPF_PAIR_PROGRAM),
    }
    with mounted(None) as root:
        there = (root / HIST).exists()
    return {name: probe for name, probe in every.items() if there or name not in (KERNEL_CALL, KERNEL_PAIR)}


@contextmanager
def joined(attach: str, aggregate: str, calls: Bursts, found: Found) -> Iterator[Between]:
    """An agent that reads, and joins what it read; or has the kernel join it. A burst is over once it has
    read all of it."""
    before, config = calls.made, configured(AGENT % (attach, aggregate))
    with mounted(None) as root, Agent(config, MountedTracefs(root), Shutdown()) as agent:
        agent.start()
        if down := agent.ready():
            raise Missed(down)
        yield agent.snapshot if aggregate == "events" else None
        time.sleep(MAX_AGE)  # the kernel's counts are no older then
        snapshot = agent.snapshot()
    made = calls.made - before
    [probe] = snapshot.probes
    if (probe.state, probe.plan) != ("up", aggregate):
        raise Missed(f"the probe is {probe.state}, by {probe.plan}")
    saw_all(probe.hits or 0, made)
    durations = min(made, total(snapshot, "kprobe_duration_seconds"))
    told = total(snapshot, "kprobe_exporter_events_lost_total")
    require_all_told(made, durations, told)
    found.made += made
    found.lost += made - durations
    found.told += told


def mapped(program: str) -> AbstractContextManager[None]:
    """bpftrace, which adds up in the kernel: there is nothing to wait for."""
    return bpftrace(f"{program} {SAYS_SO}", lambda printed: LIVE in printed.split(), BURST * (BURSTS + 1))


def total(snapshot: Snapshot, name: str) -> int:
    """The sum of a metric's samples, of a histogram's their number."""
    values = (value for one in snapshot.families if one.name == name for value in one.samples.values())
    return round(sum(sum(v.counts) if isinstance(v, HistogramValue) else v for v in values))


def nanoseconds(calls: Bursts, between: Between) -> float:
    """A call's, in the fastest of some bursts, after one that does not count."""
    figures = []
    for _ in range(BURSTS + 1):
        figures.append(calls.burst(BURST))
        if between is not None:
            between()
    return min(figures[1:])
