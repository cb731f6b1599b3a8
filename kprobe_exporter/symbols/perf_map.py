"""Functions that a program compiles while it runs, from the list that it writes for perf.

``/tmp/perf-PID.map`` has a line ``START SIZE NAME`` for each function, numbers in hexadecimal
(tools/perf/Documentation/jit-interface.txt). V8, CPython 3.12, .NET and agents of the JVM write it.
"""

import os
import re
import stat
import time
from bisect import bisect_left
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from kprobe_exporter.elf.budget import Exhausted, FileBudget
from kprobe_exporter.identity.cgroups import TICK
from kprobe_exporter.util.overruns import OVERRUNS
from kprobe_exporter.util.rooted_path import open_rooted

SHARE = 8  # A list may take 64 MiB of reading and 0.6 s, because it is read again for functions added later.

MAX_LINE = 1024  # Bytes of a line that are read; the rest of it is skipped

SLACK_NS = 1_000_000_000  # By which the clock of files may be behind

_LINE = re.compile(rb"([0-9a-f]{1,16}) ([0-9a-f]{1,16}) (\S[^\n]*)")

_STATUS = re.compile(rb"(?s)\nUid:(?:\t\d{1,10}){3}\t(\d{1,10})\n.*?\nNStgid:(?:\t\d{1,10})*\t(\d{1,10})\n")
"""The user for files, and the process id in the innermost namespace (proc_pid_status(5))."""

_START = re.compile(rb"(?s)\d{1,10} \(.*\) \S(?: \S+){18} (\d{1,20})\s")
"""Field 22 of proc_pid_stat(5): the start in ticks after boot."""


def open_map(process: Path) -> BinaryIO:
    """Open the list of a directory ``/proc/PID``, as the file that the process itself has under this name.

    Raises OSError if there is none. A list that another user may have written, or that an earlier process
    with this id left behind, counts as none.
    """
    status = _STATUS.search((process / "status").read_bytes())
    start = _START.match((process / "stat").read_bytes())
    if status is None or start is None:
        raise ProcessLookupError
    file = open_rooted(f"{process}/root/tmp/perf-{int(status[2])}.map")
    found = os.fstat(file.fileno())
    booted = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    is_old = found.st_mtime_ns + SLACK_NS < booted + int(start[1]) * TICK
    if is_old or found.st_uid not in (0, int(status[1])) or found.st_mode & stat.S_IWOTH:
        file.close()
        raise PermissionError
    return file


def functions_at(path: str, addresses: Iterable[int], pid: int) -> dict[int, str]:
    """Return the function at each of these addresses that has one, by a list of process ``pid``.

    The last line wins, because a program may compile a function to where another one was. Raises OSError.
    """
    # Imported when it is needed, because it imports the ELF parser, which takes 4 MB.
    from kprobe_exporter.elf.sections import printable  # noqa: PLC0415

    ordered, found = sorted(addresses), dict[int, bytes]()
    with open(path, "rb") as file:
        inode = os.fstat(file.fileno()).st_dev, os.fstat(file.fileno()).st_ino
        if OVERRUNS.refused("file", inode):
            return {}
        budget = FileBudget(SHARE)
        try:
            with budget.question():
                is_begin = True
                for line in iter(partial(file.readline, MAX_LINE), b""):
                    budget.spend(len(line))
                    if is_begin and (fields := _LINE.match(line)) is not None:
                        start, end = int(fields[1], 16), int(fields[1], 16) + int(fields[2], 16)
                        for address in ordered[bisect_left(ordered, start) : bisect_left(ordered, end)]:
                            budget.spend(1)
                            found[address] = fields[3]
                    is_begin = line.endswith(b"\n")
        except Exhausted:
            message = f"the functions that process {pid} compiles stay unknown: its list of them is too long"
            OVERRUNS.add("file", inode, message)
            return {}
    # A backquote would make the name look like a function of a file.
    return {address: printable(name).replace("`", "'") for address, name in found.items()}
