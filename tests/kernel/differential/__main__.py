"""`make differential`: as many seeds as are wanted, in a VM, or as root on this machine with `--host`."""

import argparse
import compileall
import subprocess
import sys
import threading

from tests.kernel.differential.cases import MOST_AT_ONCE
from tests.kernel.differential.known import KNOWN
from tests.vm import BUILD, ROOT
from tests.vm.__main__ import PYTHON, execute
from tests.vm.kernels import KERNELS, MAIN, image

TEST = "tests/kernel/differential"
REST = 15 * 60
"""Seconds for booting, importing and making a failing case smaller, on a busy machine."""
EACH = 6
"""Seconds that a seed takes at most on a busy machine."""


def command(seeds: int, first: int, known: list[str]) -> list[str]:
    """The command of pytest in the guest. More cases at once take less time each, and longer to explain."""
    options = ["-p", "no:cacheprovider", "--tb=short", "--color=no", "-s"]
    drawn = [
        f"--seeds={seeds}",
        f"--first-seed={first}",
        f"--at-once={MOST_AT_ONCE}",
        *(f"--draw={name}" for name in known),
    ]
    return [PYTHON, "-m", "pytest", *options, TEST, *drawn]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernel.differential", description=__doc__)
    parser.add_argument("--host", action="store_true", help="this machine's kernel, what it can")
    parser.add_argument("--kernel", choices=list(KERNELS), default=MAIN.series)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--draw", action="append", choices=sorted(KNOWN), default=[], help="known faults too")
    options = parser.parse_args()
    if options.host:
        return subprocess.run(
            command(options.seeds, options.first_seed, options.draw), check=False
        ).returncode
    kernel = KERNELS[options.kernel]
    image(kernel)
    for package in ("kprobe_exporter", "tests"):  # the guest cannot write bytecode
        compileall.compile_dir(ROOT / package, quiet=2)
    directory = BUILD / "differential" / kernel.series
    directory.mkdir(parents=True, exist_ok=True)
    seeds = command(options.seeds, options.first_seed, options.draw)
    return execute(kernel, seeds, directory, threading.Event(), REST + EACH * options.seeds)


if __name__ == "__main__":
    sys.exit(main())
