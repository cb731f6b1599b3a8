"""Runs the unit tests that are not slow: `make check`.

Each CPU has a process with a share of the files. pytest-xdist would collect all tests in each process, and
send every result to one more.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNIT = "tests/unit"
OPTIONS = ("-q", "-m", "not slow", "--hypothesis-profile=quick", "-p", "no:xdist")


def shares(sizes: Iterable[tuple[str, int]], number: int) -> list[list[str]]:
    """Return the files in so many groups of about the same total size."""
    groups: list[tuple[int, list[str]]] = [(0, []) for _ in range(number)]
    for name, size in sorted(sizes, key=lambda file: (-file[1], file[0])):
        least = min(range(number), key=lambda at: groups[at][0])
        groups[least] = (groups[least][0] + size, [*groups[least][1], name])
    return [names for _, names in groups if names]


def main() -> int:
    """Run the tests, and print the output of each process when it has ended. Return 0 if all passed."""
    sizes = [(str(file.relative_to(ROOT)), file.stat().st_size) for file in (ROOT / UNIT).rglob("test_*.py")]
    command = [sys.executable, "-m", "pytest", *OPTIONS]
    running = [
        subprocess.Popen([*command, *names], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for names in shares(sizes, len(os.sched_getaffinity(0)))
    ]
    for process in running:
        print(process.communicate()[0])
    return max(process.returncode for process in running)


if __name__ == "__main__":
    sys.exit(main())
