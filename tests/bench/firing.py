"""What one firing takes on a real CPU, beside an emulated one: where the agent's estimate comes from."""

import subprocess
from collections.abc import Mapping

from kprobe_exporter.agent import overhead
from tests.bench.firing_guest import (
    KPROBE,
    KRETPROBE,
    PROGRAM,
    ROUNDS,
    SOURCE,
    TRACEPOINT,
    UPROBE,
    URETPROBE,
    measure,
)
from tests.bench.guest import in_each_kernel
from tests.bench.progress import say
from tests.bench.table import Table
from tests.vm import ROOT

TITLE = "A firing"
CONSTANTS: Mapping[str, float] = {
    TRACEPOINT: overhead.TRACEPOINT,
    UPROBE: overhead.UPROBE,
    URETPROBE: overhead.URETPROBE,
    KPROBE: overhead.KPROBE,
    KRETPROBE: overhead.KRETPROBE,
}


def table() -> Table:
    program = ROOT / PROGRAM
    program.parent.mkdir(parents=True, exist_ok=True)
    code = program.with_suffix(".c")
    code.write_text(SOURCE)
    subprocess.run(["cc", "-O1", "-o", program, code], check=True)
    say("on this machine")
    here = measure()
    return tabulated(here, in_each_kernel("tests.bench.firing_guest"))


def tabulated(here: Mapping[str, float], kernels: Mapping[str, Mapping[str, float]]) -> Table:
    rows = []
    for kind, constant in CONSTANTS.items():
        emulated = [each[kind] for each in kernels.values()]
        own = here.get(kind)
        rows.append(
            (
                kind,
                *(f"{ns:,.0f}" for ns in emulated),
                "" if own is None else f"{own:,.0f}",
                "" if own is None else f"{max(emulated) / own:.1f}",
                f"{constant * 1e9:,.0f}",
            )
        )
    slowest = min(
        (max(each[kind] for each in kernels.values()) / own for kind, own in here.items()),
        default=float("nan"),
    )
    return Table(
        TITLE,
        "The nanoseconds that an event in the ring buffer adds to its call, of getppid(2) or of a function"
        " of a C program: the fastest of 3 runs less the fastest one without a probe, the median of"
        f" {ROUNDS} rounds. The constants are those of `kprobe_exporter_probe_overhead_seconds_total`.",
        ("kind", *(f"{version}, emulated" for version in kernels), "this machine", "times", "constant"),
        tuple(rows),
        (
            "This machine's kernel has no kprobes. The constants of those are the emulated figures, of this"
            " table and of the overhead on the traced call, divided by 5. A real CPU was at least so many"
            f" times faster ({slowest:.1f} times in this run): rather too high than too low.",
            "In a virtual machine whose hypervisor handles the breakpoints of its programs, a uprobe costs"
            " more, and the estimate is too low: on one (2026-11-28, commit f801021f4) a uprobe took 14.9 µs,"
            " a uretprobe 15.3 µs, and a tracepoint 55 ns.",
        ),
    )
