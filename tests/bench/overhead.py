"""What each kind of probe adds to a call of the traced function, beside bpftrace."""

import subprocess
from collections.abc import Mapping, Sequence
from statistics import median

from tests.bench.guest import EMULATED, in_each_kernel
from tests.bench.overhead_guest import (
    BPF_COUNT,
    BPF_HIST,
    CALLS,
    COUNT,
    ENTRY_EVENT,
    FUNCTION,
    KERNEL,
    NOTHING,
    ONE_TRIGGER,
    RETURN_EVENT,
    ROUNDS,
    RUNS,
)
from tests.bench.table import Table, reached
from tests.vm import ROOT

TITLE = "Overhead on the traced call"
PACKAGES = ("bpftrace", "linux-perf")
CLOCK = (
    "The guest's clock is the TSC, as a real machine's is; it would take a device (HPET), emulated at half a"
    " microsecond a look, and each event looks once."
)
UNREAD = (
    "The ring buffer overwrites its oldest events, and what the agent spends on reading them is not in these"
    " figures; the other plans leave it nothing to read but totals."
)
COUNT_GOAL = 1.0
HIST_GOAL = 1.25

# What is shown of each, and what it is compared with.
SHOWN = {
    COUNT: ("plan count (softly enabled kprobe)", BPF_COUNT),
    ENTRY_EVENT: ("plan events, on entry (ring buffer)", BPF_COUNT),
    BPF_COUNT: ("bpftrace `kprobe: @ = count()`", BPF_COUNT),
    RETURN_EVENT: ("plan events, return value (ring buffer)", BPF_HIST),
    KERNEL: ("plan kernel, return value (hist triggers)", BPF_HIST),
    ONE_TRIGGER: ("of them the histogram's trigger alone", BPF_HIST),
    BPF_HIST: ("bpftrace `kretprobe: @ = hist(retval)`", BPF_HIST),
}


def table() -> Table:
    subprocess.run([ROOT / "scripts/debian-packages", *PACKAGES], check=True)
    rounds: dict[str, dict[str, list[float]]] = in_each_kernel("tests.bench.overhead_guest")
    kernels = {version: added(found) for version, found in rounds.items()}
    head = ["probe"]
    base = ["none: the call itself"]
    for version, found in rounds.items():
        head += [f"{version}: ns", "of bpftrace"]
        base += [f"{median(found[NOTHING]):,.0f}", ""]
    rows = [base]
    for name, (shown, peer) in SHOWN.items():
        row = [shown]
        for medians in kernels.values():
            row += [f"+{medians[name]:,.0f}", f"{medians[name] / medians[peer]:.2f}"]
        rows.append(row)
    return Table(
        TITLE,
        f"What a probe on `{FUNCTION}` adds to a call of getppid(2) by `perf bench syscall basic`: each probe"
        f" in turn, put in as the agent does, in {ROUNDS} rounds of {RUNS} runs of {CALLS:,} calls. A round's"
        " figure is its fastest run less the fastest one without a probe; shown is the median of the rounds."
        " Every probe was seen to count all calls. *of bpftrace* is the ratio to its counterpart, `count()`"
        " on entry and `hist(retval)` on return.",
        tuple(head),
        tuple(map(tuple, rows)),
        (EMULATED, CLOCK, spread(rounds), UNREAD, *goals(kernels)),
    )


def added(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """What each probe adds: the median over the rounds."""
    return {name: median(differences(found, name)) for name in SHOWN}


def differences(found: Mapping[str, Sequence[float]], name: str) -> list[float]:
    return [with_it - without for with_it, without in zip(found[name], found[NOTHING], strict=True)]


def spread(rounds: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """How far a round is from the median, typically."""
    away = []
    for found in rounds.values():
        for name, middle in added(found).items():
            away += [abs(one / middle - 1) for one in differences(found, name)]
    return f"Half of the rounds are within {100 * median(away):.0f} % of the median that is shown."


def goals(kernels: Mapping[str, Mapping[str, float]]) -> list[str]:
    counts = {version: medians[COUNT] / medians[BPF_COUNT] for version, medians in kernels.items()}
    hists = {
        version: min(medians[KERNEL], medians[RETURN_EVENT]) / medians[BPF_HIST]
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
