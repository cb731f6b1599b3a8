"""`make bench`: runs the benchmarks, prints their tables and writes them to docs/benchmarks.md."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from tests.bench import (
    clients,
    cpus,
    firing,
    many,
    otlp,
    overhead,
    recordings,
    scrape,
    stacks,
    start,
    texts,
    throughput,
    time_of_threads,
    tools,
    usdt,
    work,
)
from tests.bench.document import merged
from tests.bench.machine import WRITTEN, conditions, revision
from tests.bench.table import Table

DOCUMENT = Path(__file__).parents[2] / WRITTEN

# By the name on the command line. Each has a TITLE and measures by table().
BENCHMARKS: Mapping[str, ModuleType] = {
    "throughput": throughput,
    "overhead": overhead,
    "work": work,
    "scrape": scrape,
    "start": start,
    "otlp": otlp,
    "firing": firing,
    "clients": clients,
    "usdt": usdt,
    "stacks": stacks,
    "cpus": cpus,
    "recordings": recordings,
    "time": time_of_threads,
    "many": many,
    "tools": tools,
    "texts": texts,
}


def main() -> int:
    names = _arguments()
    # Ended by a signal, what was put into the kernel is still taken out again.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    for name in names:
        print(f"== {name}: {_summary(BENCHMARKS[name])}", flush=True)
        commit = revision()
        table: Table = BENCHMARKS[name].table()
        print(f"\n{table.text()}\n", flush=True)
        _write(table, names, commit)
    print(f"{time.monotonic() - began:.0f} s in all; written to {DOCUMENT.relative_to(Path.cwd())}")
    return 0


def _write(table: Table, names: list[str], commit: str) -> None:
    """At once, so that a later benchmark that fails costs only its own table."""
    command = "make bench" if names == list(BENCHMARKS) else f'make bench ARGS="{" ".join(names)}"'
    body = f"{conditions(commit)} `{command}`\n\n{table.markdown()}"
    before = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    order = [module.TITLE for module in BENCHMARKS.values()]
    DOCUMENT.write_text(merged(before, {table.title: body}, order))


def _summary(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n")[0]


def _arguments() -> list[str]:
    listing = "\n".join(f"  {name:11} {_summary(module)}" for name, module in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        epilog=f"benchmarks, all of them by default:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    names: list[str] = parser.parse_args().names or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}: name some of {', '.join(BENCHMARKS)}")
    if os.geteuid() != 0:
        parser.error("run it as root: it records events of the kernel")
    return names


if __name__ == "__main__":
    sys.exit(main())
