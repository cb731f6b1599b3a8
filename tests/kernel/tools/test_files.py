"""The tools of files, over paths, descriptors and bytes that the load knows."""

import ctypes
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from tests.support.tool_cases import SHOWN as COMM
from tests.support.tool_cases import Rows, ToolCase, compare, each_case, run_case
from tests.support.trace_process import StartTrace

MEMORY = ("kprobe_events",)
"""What it takes to read a program's memory: eprobes, or before them kprobes."""

LIBC = ctypes.CDLL(None, use_errno=True)
NAME, SHOWN = b'f\x1b[31m\n\xff,"', 'f\\x1b[31m\\n\\xff,"'
AT_FDCWD = -100
SYS_OPEN, SYS_STAT, SYS_LSTAT, SYS_CREAT, SYS_OPENAT2 = 2, 4, 6, 85, 437
X86_ONLY = (SYS_OPEN, SYS_STAT, SYS_LSTAT, SYS_CREAT)
KIB = 1024
ALL = ("-i", "300", "-n", "1000")
"""One table with all rows at the end."""


@contextmanager
def hostile_file() -> Iterator[tuple[bytes, str]]:
    """Make a file with a hostile name; yield its path, and the path as it is shown."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.fsencode(directory) + b"/" + NAME
        os.mknod(path, 0o600)
        yield path, f"{directory}/{SHOWN}"


def called(number: int, *arguments: object) -> int:
    """Make a system call; return what it returns, or the error as a negative number."""
    made: int = LIBC.syscall(number, *arguments)
    return -ctypes.get_errno() if made == -1 else made


def result(returned: int) -> dict[str, int]:
    return {"fd": max(returned, -1), "err": max(-returned, 0)}


def known(numbers: tuple[int, ...]) -> list[int]:
    """Return the system calls that this processor has."""
    return [number for number in numbers if number not in X86_ONLY or os.uname().machine == "x86_64"]


def opens() -> Rows:
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY)
    arguments: dict[int, tuple[object, ...]] = {
        SYS_OPEN: (os.O_RDONLY, 0),
        SYS_CREAT: (0o600,),
    }
    rows = []
    with hostile_file() as (path, shown):
        for file, name in ((path, shown), (path + b"-none/x", f"{shown}-none/x")):
            returned = LIBC.openat(AT_FDCWD, file, os.O_RDONLY)
            made = [-ctypes.get_errno() if returned == -1 else returned]
            made += [called(number, file, *arguments[number]) for number in known((SYS_OPEN, SYS_CREAT))]
            made.append(called(SYS_OPENAT2, AT_FDCWD, file, how, ctypes.sizeof(how)))
            rows += [{"comm": COMM, "path": name, **result(one)} for one in made]
            for one in made:
                with suppress(OSError):
                    os.close(one)
    return rows


def failed_opens() -> Rows:
    return [row for row in opens() if row["err"]]


def statuses() -> Rows:
    room = ctypes.create_string_buffer(512)
    rows = []
    with hostile_file() as (path, shown):
        for file, name in ((path, shown), (path + b"-none", f"{shown}-none")):
            calls = [
                partial(LIBC.fstatat, AT_FDCWD, file, room, 0),
                partial(LIBC.statx, AT_FDCWD, file, 0, 0x7FF, room),
                partial(LIBC.statfs, file, room),
                *(partial(LIBC.syscall, number, file, room) for number in known((SYS_STAT, SYS_LSTAT))),
            ]
            for call in calls:
                returned = call()
                code = -ctypes.get_errno() if returned == -1 else returned
                rows.append({"comm": COMM, "path": name, **result(code)})
    return rows


def failed_statuses() -> Rows:
    return [row for row in statuses() if row["err"]]


def transfers() -> Rows:
    """Writes and reads of a regular file, and of a pipe, which is none."""
    with hostile_file() as (path, _):
        file = os.open(path, os.O_RDWR)
        for _ in range(7):
            os.write(file, bytes(3 * KIB))
        os.lseek(file, 0, os.SEEK_SET)
        for _ in range(5):
            assert len(os.read(file, 4 * KIB)) == 4 * KIB
        os.close(file)
        here = {"tid": os.getpid(), "comm": COMM, "t": "R", "file": SHOWN}
        return [{**here, "reads": 5, "writes": 7, "r_kb": 20, "w_kb": 21}]


def other_files() -> Rows:
    receive, send = os.pipe()
    os.write(send, bytes(2 * KIB))
    os.read(receive, 4 * KIB)
    here = {"tid": os.getpid(), "comm": COMM, "t": "P"}  # also that by which this load gets and gives word
    return [*transfers(), {**here, "reads": [1, 2], "writes": [2, 3], "r_kb": 2, "w_kb": [2, 4]}]


def of_the_file(row: Mapping[str, Any], pid: int) -> bool:
    return bool(row["pid"] == pid and SHOWN in (row["path"] or ""))


def of_the_thread(row: Mapping[str, Any], pid: int) -> bool:
    return bool(row["tid"] == pid)


CASES = [
    ToolCase("opensnoop", opens, needs=MEMORY, only=of_the_file),
    ToolCase("opensnoop", failed_opens, ("-x",), needs=MEMORY, only=of_the_file),
    ToolCase("statsnoop", statuses, needs=MEMORY, only=of_the_file),
    ToolCase("statsnoop", failed_statuses, ("-x",), needs=MEMORY, only=of_the_file),
    ToolCase("filetop", transfers, ALL, needs=MEMORY, only=of_the_thread),
    ToolCase("filetop", other_files, ("-a", *ALL), needs=MEMORY, only=of_the_thread, exact=False),
]


@each_case(CASES)
def test_a_tool(case: ToolCase, trace: StartTrace) -> None:
    rows, expected = run_case(case, trace)
    compare(rows, expected, exact=case.exact)
