"""Runs the suites on this machine, and in a VM for each Linux kernel under test.

kernels     the kernels under test, and the features that each lacks
debian      Debian packages unpacked below build/, not installed
foreign     a root file system of another architecture, for the guests of its kernels
boot        the command that boots one kernel over this machine's own root, read-only
process     a child process with a name, a log, a time limit and a certain end
report      judges pytest's results and adds them up

`python -m tests.vm --help` lists the commands.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
