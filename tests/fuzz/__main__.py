"""`make fuzz`: feeds what reads others' bytes with wrong ones, and writes what came of it to a document."""

import argparse
import sys
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from random import SystemRandom

from tests.bench.progress import say
from tests.fuzz import (
    configuration,
    cost,
    elf_files,
    engine,
    http,
    pages,
    proc_texts,
    trace_text,
    web_configuration,
)
from tests.fuzz.document import merged, row, table
from tests.fuzz.run import Limit, Result, fuzz
from tests.fuzz.target import ROOT, Target

DOCUMENT = ROOT / "docs/reliability.md"

TARGETS: Mapping[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (
        configuration,
        trace_text,
        pages,
        engine,
        http,
        web_configuration,
        proc_texts,
        elf_files,
        cost,
    )
}
"""All targets by their names on the command line."""

SECONDS = 180.0


def main() -> int:
    given = _arguments()
    results: list[Result] = []
    for name in given.names:
        limit = Limit(given.seconds, given.inputs)
        if given.total is not None and name == given.names[-1]:
            limit = Limit(inf, max(0, given.total - sum(result.inputs for result in results)))
        first = given.seed if given.seed is not None else SystemRandom().randrange(10**9)
        say(f"{name}: from seed {first} on")
        results.append(fuzz(TARGETS[name], first, limit, say))
    rows = [row(result, time.strftime("%Y-%m-%d")) for result in results]
    print(f"\n{table(rows).text()}\n", flush=True)
    if given.seed is None and given.inputs is None:
        before = DOCUMENT.read_text() if DOCUMENT.exists() else ""
        DOCUMENT.write_text(merged(before, rows, list(TARGETS)))
        print(f"written to {DOCUMENT.relative_to(Path.cwd())}")
    return 1 if any(result.crashes for result in results) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(TARGETS)}")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of each target (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, help="of the first input: a repetition, which is not written")
    parser.add_argument("--inputs", type=int, help="as many at the most: a trial, which is not written")
    parser.add_argument(
        "--total",
        type=int,
        help="of all targets together: the last one goes on until then",
    )
    given = parser.parse_args()
    given.names = given.names or list(TARGETS)
    for name in given.names:
        if name not in TARGETS:
            parser.error(f"there is no target {name!r}: name some of {', '.join(TARGETS)}")
    return given


if __name__ == "__main__":
    sys.exit(main())
