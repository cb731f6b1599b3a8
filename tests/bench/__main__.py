"""`make bench`: runs the benchmarks and prints their tables."""

import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench import parse_text


def main() -> None:
    print(f"{platform.uname().release}, {_cpu()}, Python {platform.python_version()}, one core\n")
    with tempfile.TemporaryDirectory() as directory:
        _table(parse_text.HEAD, parse_text.rows(Path(directory)))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        first, *numbers = (
            text.ljust(width) if n == 0 else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *numbers]))


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    main()
