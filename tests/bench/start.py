"""How long a start and a stop take with up to 200 probes, beside the kernel's own part in them."""

from tests.bench.guest import EMULATED, in_each_kernel
from tests.bench.imports import BASELINE, imports
from tests.bench.start_guest import PLANS, SIZES
from tests.bench.table import Table

TITLE = "A start"
KINDS = {
    "count": "counted only",
    "events": "with a filter and a label",
    "members": "and a member",
}


def table() -> Table:
    here = imports()
    found: dict[str, dict[str, float]] = in_each_kernel("tests.bench.start_guest")
    head = ["kprobes"]
    for version in found:
        head += [f"{version}: agent s", "less imports", "the kernel's", "MiB", "stop s", "the kernel's"]
    rows = []
    for plan in PLANS:
        for size in SIZES:
            row = [f"{size}, {KINDS[plan]}"]
            for seconds in found.values():
                agent, kernel = seconds[f"agent {plan} {size}"], seconds[f"kernel {plan} {size}"]
                row += [f"{agent:.2f}", f"{agent - seconds['imports']:.2f}", f"{kernel:.2f}"]
                row.append(f"{seconds[f'memory {plan} {size}']:.0f}")
                row += [f"{seconds[f'{what} {plan} {size}']:.2f}" for what in ("stop", "kernel's stop")]
            rows.append(tuple(row))
    emulated = ", ".join(f"{seconds['imports']:.2f} s on {version}" for version, seconds in found.items())
    return Table(
        TITLE,
        "From the start of the process until `/-/ready` answers 200, with kprobes on so many functions that"
        " are never called; beside it the same definitions, filters and enables, written one after the other"
        " by a script that does nothing else. A stop lasts from SIGTERM to the end of the process; beside it"
        " is the removal of an instance with the same events on, and then of the definitions.",
        tuple(head),
        tuple(rows),
        (
            EMULATED,
            "MiB is the most memory that the agent had by then. It reads the BTF only with members, and"
            " with types that the configuration leaves open; Linux 6.16 and later let it map that.",
            f"A process that only imports what the agent does takes {emulated}: of the time less that, the"
            " configuration has its share, the probes theirs.",
            f"On this machine, not emulated, what `run` imports takes {here.now * 1000:.0f} ms of processor"
            f" time, {here.now / here.before:.2f} times that of {BASELINE} in the same run.",
        ),
    )
