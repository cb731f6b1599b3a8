"""Runs the suites: on this machine, and in a VM for each Linux kernel under test.

kernels     the kernels under test, and what each is known to lack
debian      Debian packages unpacked below build/, nothing installed
boot        the command that boots one kernel over this machine's own root, read-only
process     a child process with a name, a log, a time limit and an end
report      what pytest wrote, judged and added up

`python -m tests.vm --help` lists the commands.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
