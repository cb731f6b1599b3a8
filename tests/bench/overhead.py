"""What each kind of probe adds to a call of the traced function, beside bpftrace."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.bench import latency_guest
from tests.bench.guest import EMULATED, in_each_kernel
from tests.bench.latency_guest import (
    BPF_CALL,
    BPF_PAIR,
    BURST,
    BURSTS,
    CALL,
    KERNEL_CALL,
    KERNEL_PAIR,
    PAIR,
    Found,
)
from tests.bench.overhead_guest import (
    BARE_EVENT,
    BPF_COUNT,
    BPF_HIST,
    BPF_STACKS,
    CALLS,
    COUNT,
    COUNTED_STACKS,
    ENTRY_EVENT,
    EXIT_EVENT,
    FUNCTION,
    KERNEL,
    NOTHING,
    ONE_TRIGGER,
    RECORDED_STACKS,
    RETURN_EVENT,
    ROUNDS,
    RUNS,
)
from tests.bench.table import Table, reached
from tests.vm import ROOT
from tests.vm.kernels import KERNELS

TITLE = "Overhead on the traced call"
PACKAGES = ("bpftrace", "linux-perf")
CLOCK = (
    "The guest's clock is the TSC, as a real machine's is; it would take a device (HPET), emulated at half a"
    " microsecond a look, and each event looks once."
)
UNREAD = (
    "In the rows of loops the ring buffer overwrites its oldest events. These figures lack the agent's"
    " reading; the other plans leave it only totals to read."
)
FLOORS = (
    "What the kernel itself takes is shown where it is most of a plan: an event that is defined and enabled"
    " by hand in an instance without a reader, and a hist trigger alone. The second trigger of a return"
    " value counts zeros and errors by number, which the powers of two of the first cannot tell apart."
)
BURSTS_NOTE = (
    f"Calls for durations come in bursts of {BURST:,} calls by a process on a CPU of its own. A burst fits"
    " into half of the default buffer. An agent on the other CPU has read and joined each burst before the"
    " next"
    f" one. The figure is the fastest of {BURSTS} bursts in each of {latency_guest.ROUNDS} rounds, less"
    " the fastest without a probe. A burst takes milliseconds, and a machine that others use, too, may be"
    " half as fast for longer than that. (The emulated CPUs take turns on one real CPU, so a process that"
    " reads meanwhile would be measured with the call; bpftrace is kept to that other CPU as well.)"
)
COUNT_GOAL = 1.0
HIST_GOAL = 1.25
DURATION_GOAL = 1.1

# What is shown of each, and what it is compared with.
SHOWN = {
    COUNT: ("plan count (softly enabled kprobe)", BPF_COUNT),
    ENTRY_EVENT: ("plan events, on entry (ring buffer)", BPF_COUNT),
    BARE_EVENT: ("of it the kernel's: an event without a field, enabled by hand", BPF_COUNT),
    BPF_COUNT: ("bpftrace `kprobe: @ = count()`", BPF_COUNT),
    RETURN_EVENT: ("plan events, return value (ring buffer)", BPF_HIST),
    EXIT_EVENT: ("plan events, return value by `fexit`", BPF_HIST),
    KERNEL: ("plan kernel, return value (hist triggers)", BPF_HIST),
    ONE_TRIGGER: ("of them the histogram's trigger alone", BPF_HIST),
    BPF_HIST: ("bpftrace `kretprobe: @ = hist(retval)`", BPF_HIST),
    COUNTED_STACKS: ("`stacks: {}`, counted by the kernel (hist trigger)", BPF_STACKS),
    RECORDED_STACKS: ("an event with its stack, counted by the agent (ring buffer)", BPF_STACKS),
    BPF_STACKS: ("bpftrace `kprobe: @[kstack] = count()`", BPF_STACKS),
}


BASE = "none: the call itself"
DURATIONS = {
    CALL: ("plan events, a call's duration (`call:`, two events)", BPF_CALL),
    KERNEL_CALL: ("plan kernel, a call's duration (two hist triggers, a synthetic event)", BPF_CALL),
    BPF_CALL: ("bpftrace `kprobe: @s[tid]`, `kretprobe: @ = hist(…)`", BPF_CALL),
    PAIR: ("plan events, a pair of tracepoints with the key tid", BPF_PAIR),
    KERNEL_PAIR: ("plan kernel, a pair of tracepoints with the key tid", BPF_PAIR),
    BPF_PAIR: ("bpftrace with these maps on both tracepoints", BPF_PAIR),
}
DURATIONS_BASE = "none: the call itself, in bursts"


@dataclass(frozen=True)
class Measured:
    """A kernel's figures: ``loops`` and ``bursts.ns`` of every round, and why which probes are ``absent``."""

    loops: Mapping[str, Sequence[float]]
    bursts: Found
    absent: Mapping[str, str]

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> "Measured":
        return cls(result["loops"], Found(**result["bursts"]), result["absent"])


def table() -> Table:
    subprocess.run([ROOT / "scripts/debian-packages", *PACKAGES], check=True)
    native = [kernel for kernel in KERNELS.values() if kernel.flavour == "amd64"]
    kernels = sorted(native, key=lambda kernel: [int(part) for part in kernel.series.split(".")])
    results = in_each_kernel("tests.bench.overhead_guest", kernels)
    return tabulated({version: Measured.of(result) for version, result in results.items()})


def tabulated(kernels: Mapping[str, Measured]) -> Table:
    """The table of what was measured."""
    loops = {version: measured.loops for version, measured in kernels.items()}
    bursts = {version: fastest(measured.bursts.ns) for version, measured in kernels.items()}
    head = ["probe"]
    for version in kernels:
        head += [f"{version}: ns", "of bpftrace"]
    return Table(
        TITLE,
        f"The time that a probe on `{FUNCTION}` adds to a call of getppid(2) by `perf bench syscall basic`:"
        " each probe"
        f" in turn, put in as the agent does, in {ROUNDS} rounds of {RUNS} runs of {CALLS:,} calls. A round's"
        " figure is its fastest run less the fastest one without a probe; shown is the median of the rounds."
        " Every probe was seen to count all calls. *of bpftrace* is the ratio to its counterpart: `count()`"
        " on entry, `hist(retval)` on return, `@[kstack] = count()` for stacks. Its counterpart of a"
        " duration is `hist(nsecs - @s[tid])`, with the entry's time in a map.",
        tuple(head),
        (*rows(BASE, SHOWN, loops), *rows(DURATIONS_BASE, DURATIONS, bursts)),
        (
            EMULATED,
            CLOCK,
            spread(loops.values()),
            FLOORS,
            UNREAD,
            BURSTS_NOTE,
            *(lost(version, measured.bursts) for version, measured in kernels.items()),
            *(fexit(version, measured) for version, measured in kernels.items()),
            *(
                f"No hist triggers on {version}: {reason}."
                for version, measured in kernels.items()
                if (reason := measured.absent.get(KERNEL)) is not None
            ),
            *goals({version: added(found) for version, found in loops.items()}),
            *duration_goals({version: added(found) for version, found in bursts.items()}),
        ),
    )


def rows(
    base: str,
    shown: Mapping[str, tuple[str, str]],
    rounds: Mapping[str, Mapping[str, Sequence[float]]],
) -> Iterable[tuple[str, ...]]:
    """What each probe adds, and the ratio to its counterpart, on each kernel; nothing where it is not."""
    first = [base]
    for found in rounds.values():
        first += [f"{median(found[NOTHING]):,.0f}", ""]
    yield tuple(first)
    for name, (what, peer) in shown.items():
        row = [what]
        for found in rounds.values():
            medians = added(found)
            there = name in medians
            row += [f"+{medians[name]:,.0f}", f"{medians[name] / medians[peer]:.2f}"] if there else ["", ""]
        yield tuple(row)


def added(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """What each probe adds: the median over the rounds."""
    return {name: median(differences(found, name)) for name in found if name != NOTHING}


def fastest(found: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The fastest round of each probe, as the only one."""
    return {name: [min(figures)] for name, figures in found.items()}


def differences(found: Mapping[str, Sequence[float]], name: str) -> list[float]:
    return [with_it - without for with_it, without in zip(found[name], found[NOTHING], strict=True)]


def spread(rounds: Iterable[Mapping[str, Sequence[float]]]) -> str:
    """How far a round is from the median, typically."""
    away = []
    for found in rounds:
        for name, middle in added(found).items():
            away += [abs(one / middle - 1) for one in differences(found, name)]
    return f"Half of the rounds are within {100 * median(away):.0f} % of the median that is shown."


def lost(version: str, bursts: Found) -> str:
    """What the agents did not make a duration of, while they were measured."""
    share = f"{100 * bursts.lost / bursts.made:.2f} %" if bursts.lost else "none"
    return (
        f"Of {bursts.made:,} calls and pairs in bursts on {version}, {share} went without a duration"
        f" ({bursts.lost:,}; the agent told of {bursts.told:,} lost events)."
    )


def fexit(version: str, measured: Measured) -> str:
    """How it compares with a kretprobe, or why it is not there."""
    if (reason := measured.absent.get(EXIT_EVENT)) is not None:
        return f"No `fexit` on {version}: {reason.rstrip('.')}."
    medians = added(measured.loops)
    ratio = medians[EXIT_EVENT] / medians[RETURN_EVENT]
    return (
        f"`fexit` costs {ratio:.2f} times what a kretprobe does on {version}, of which a hist trigger has its"
        " share: no profile of the kernel counts its hits."
    )


def duration_goals(kernels: Mapping[str, Mapping[str, float]]) -> list[str]:
    said = {CALL: "a call's duration", PAIR: "a pair's duration"}
    notes = []
    for name, what in said.items():
        ratios = {
            version: medians[name] / medians[DURATIONS[name][1]] for version, medians in kernels.items()
        }
        goal = f"{what} costs at most {DURATION_GOAL} times bpftrace's maps"
        notes.append(reached(goal, _each(ratios), ok=_all(ratios, DURATION_GOAL)))
    return notes


def goals(kernels: Mapping[str, Mapping[str, float]]) -> list[str]:
    counts = {version: medians[COUNT] / medians[BPF_COUNT] for version, medians in kernels.items()}
    hists = {
        version: min(medians[name] for name in (KERNEL, RETURN_EVENT) if name in medians) / medians[BPF_HIST]
        for version, medians in kernels.items()
    }
    return [
        reached("count costs no more than bpftrace's count()", _each(counts), ok=_all(counts, COUNT_GOAL)),
        reached(
            f"a return histogram by the cheaper plan costs at most {HIST_GOAL} times bpftrace's hist(retval)",
            _each(hists),
            ok=_all(hists, HIST_GOAL),
        ),
    ]


def _each(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{ratio:.2f} times on {version}" for version, ratio in ratios.items())


def _all(ratios: Mapping[str, float], goal: float) -> bool:
    return all(ratio <= goal for ratio in ratios.values())
