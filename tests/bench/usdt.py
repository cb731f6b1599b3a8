"""What a probe by USDT adds to a function of a program, beside bpftrace."""

import subprocess
from collections.abc import Mapping, Sequence

from tests.bench.guest import EMULATED, in_each_kernel
from tests.bench.overhead import rows, spread
from tests.bench.table import Table
from tests.bench.usdt_guest import BPF_COUNT, BPF_EVENT, CALLS, COUNT, EVENT, PROBE, PYTHON, ROUNDS, RUNS
from tests.vm import ROOT

TITLE = "A probe by USDT"
PACKAGES = ("bpftrace", "python3.11-minimal")

BASE = "none: the collection itself"
SHOWN = {
    COUNT: ("plan count (`uprobe_profile`)", BPF_COUNT),
    BPF_COUNT: ("bpftrace `usdt: @ = count()`", BPF_COUNT),
    EVENT: ("plan events, with its argument as label", BPF_EVENT),
    BPF_EVENT: ("bpftrace `usdt: @[arg0] = count()`", BPF_EVENT),
}


def table() -> Table:
    subprocess.run([ROOT / "scripts/debian-packages", *PACKAGES], check=True)
    return tabulated(in_each_kernel("tests.bench.usdt_guest"))


def tabulated(kernels: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    """The table of the nanoseconds of every round, by kernel and probe."""
    head = ["probe"]
    for version in kernels:
        head += [f"{version}: ns", "of bpftrace"]
    return Table(
        TITLE,
        f"The time that a probe on `python:{PROBE}` adds to a garbage collection of {PYTHON} that finds"
        " nothing,"
        f" `gc.collect(0)`: each probe in turn, put in as the agent does, in {ROUNDS} rounds of {RUNS} runs"
        f" of {CALLS:,} collections. A round's figure is its fastest run less the fastest one without a"
        " probe; shown is the median of the rounds. Every probe was seen to count all collections.",
        tuple(head),
        tuple(rows(BASE, SHOWN, kernels)),
        (
            EMULATED,
            spread(kernels.values()),
            "The kernel's breakpoint in the program is nearly all of it, and the same for both.",
        ),
    )
