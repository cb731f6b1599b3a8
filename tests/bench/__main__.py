"""`make bench`: runs the benchmarks, prints their tables and writes them to docs/benchmarks.md."""

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.bench.table import merge

DOCUMENT = Path(__file__).parents[2] / "docs/benchmarks.md"

BENCHMARKS = ("throughput", "overhead", "agent", "scrape", "start")


def main(names: Sequence[str]) -> None:
    for name in names:
        if name not in BENCHMARKS:
            sys.exit(f"there is no benchmark '{name}': name some of {', '.join(BENCHMARKS)}, or none for all")
    if os.geteuid() != 0:
        sys.exit("the benchmarks need root: tracefs and virtual machines")
    started = time.monotonic()
    for name in names or BENCHMARKS:
        module: Any = importlib.import_module(f"tests.bench.{name}")
        table = module.table(progress(name, started))
        text = DOCUMENT.read_text() if DOCUMENT.exists() else ""
        DOCUMENT.write_text(merge(text, [table]))
        print(f"\n{table.text()}", flush=True)
    print(f"{time.monotonic() - started:.0f} s; the tables are in {DOCUMENT.relative_to(Path.cwd())}")


def progress(name: str, started: float) -> Callable[[str], None]:
    """Tells on stderr what is being measured."""

    def tell(what: str) -> None:
        print(f"[{time.monotonic() - started:4.0f}s] {name}: {what}", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    main(sys.argv[1:])
