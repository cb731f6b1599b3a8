"""The tools of processes and programs, over children whose arguments and ends the load knows."""

import os
import pty
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.support.forked_child import started
from tests.support.memory_cgroup import memory_cgroup
from tests.support.tool_cases import SHOWN, Rows, ToolCase, compare, each_case, run_case
from tests.support.trace_process import StartTrace

PROBES = ("kprobe_events",)
MEMORY = ("kprobe_events",)
"""What it takes to read a program's memory: eprobes, or before them kprobes."""

TRUE = "/bin/true"
HOSTILE = (b"true", b"--a=\x1b[31m\n\xff,\"'", b"two words")
SHOWN_HOSTILE = "true --a=\\x1b[31m\\n\\xff,\"' two words"
MANY = tuple(str(number).encode() for number in range(30))


def executed(path: str, *arguments: bytes) -> int:
    """Execute a program in a child, with a path and arguments that are in memory; return the child's id."""

    def work() -> None:
        with suppress(OSError):
            os.execv(path, arguments)

    child = started(work)
    os.waitpid(child, 0)
    return child


def executions() -> Rows:
    known = {"pcomm": "true", "ppid": os.getpid(), "ret": 0}
    return [
        {**known, "pid": executed(TRUE, *HOSTILE), "args": SHOWN_HOSTILE},
        {**known, "pid": executed(TRUE, *MANY), "args": f"{b' '.join(MANY[:20]).decode()} ..."},
    ]


def failed_executions() -> Rows:
    gone = {"pcomm": "no-such-program", "pid": executed("/tmp/no-such-program-here", b"x", b"y")}
    return [{**gone, "ppid": os.getpid(), "ret": -2, "args": "x y"}, *executions()]


def exits() -> Rows:
    """Children that end by themselves, by a signal, and after a while."""
    ends: Sequence[tuple[Callable[[], object], int, str]] = (
        (lambda: os._exit(0), 0, "none"),
        (lambda: os._exit(3), 3, "none"),
        (lambda: os._exit(255), 255, "none"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 0, "SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGUSR2), 0, "SIGUSR2"),
    )
    rows = []
    for work, code, name in ends:
        begun = time.monotonic()

        def late(work: Callable[[], object] = work) -> None:
            time.sleep(0.05)
            work()

        child = started(late)
        os.waitpid(child, 0)
        age = [0.05, time.monotonic() - begun + 0.01]
        known = {"pcomm": SHOWN, "pid": child, "tid": child, "ppid": os.getpid(), "age_s": age}
        rows.append({**known, "exit_code": code, "signal": name})
    return rows


def failed_exits() -> Rows:
    return [row for row in exits() if (row["exit_code"], row["signal"]) != (0, "none")]


def ends() -> Rows:
    """The same on a kernel that does not tell how."""
    return [{key: row[key] for key in ("pcomm", "pid", "tid", "ppid", "age_s")} for row in exits()]


def priorities() -> Rows:
    """Higher priorities, by root and by another user, who may not."""

    def work() -> None:
        os.setuid(65534)
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -2)
        time.sleep(0.5)  # without eprobes the tool reads its name when it reads the event

    os.setpriority(os.PRIO_PROCESS, 0, -1)
    denied = started(work)
    os.waitpid(denied, 0)
    known = {"cap": 23, "name": "CAP_SYS_NICE", "comm": SHOWN}
    return [{**known, "pid": os.getpid()}, {**known, "pid": denied}]


def who_asks() -> Rows:
    return [{**row, "uid": uid, "audit": 1} for row, uid in zip(priorities(), (0, 65534), strict=True)]


def typed() -> Rows:
    """Lines that are typed into a shell."""
    lines = (b"echo marker  'a b'\n", "echo marker \N{EURO SIGN} $((1 + 1))\n".encode(), b"exit # marker\n")
    shell, descriptor = pty.fork()
    if shell == 0:
        os.execve("/bin/bash", ["bash", "--norc", "--noprofile"], {"LC_ALL": "C.UTF-8", "TERM": "dumb"})
    for line in lines:
        os.write(descriptor, line)
    with suppress(OSError):  # the terminal is gone when the shell has ended
        while os.read(descriptor, 4096):
            pass
    os.close(descriptor)
    assert os.waitpid(shell, 0)[1] in (0, signal.SIGHUP)
    return [{"pid": shell, "command": line.decode().removesuffix("\n")} for line in lines]


def out_of_memory() -> Rows:
    """A child takes more memory than its cgroup may have."""
    with memory_cgroup(16 << 20) as group:

        def work() -> None:
            (group.directory / "cgroup.procs").write_text(str(os.getpid()))
            bytearray(64 << 20)

        child = started(work)
        os.waitpid(child, 0)
        assert group.killed() == 1
        return [
            {"fpid": child, "fcomm": SHOWN, "tpid": child, "tcomm": SHOWN, "cgroup": group.directory.name}
        ]


def of_children(row: Mapping[str, Any], pid: int) -> bool:
    return bool(row["ppid"] == pid)


def of_priority(row: Mapping[str, Any], pid: int) -> bool:
    return bool(row["cap"] == 23 and row["comm"] == SHOWN)


CASES = [
    ToolCase("execsnoop", executions, needs=MEMORY, only=of_children),
    ToolCase("execsnoop", failed_executions, ("-x",), needs=MEMORY, only=of_children),
    ToolCase("exitsnoop", exits, needs=PROBES, only=of_children),
    ToolCase("exitsnoop", failed_exits, ("-x",), needs=PROBES, only=of_children),
    ToolCase("exitsnoop", ends, only=of_children),
    ToolCase("capable", priorities, only=of_priority),
    ToolCase("capable", who_asks, needs=PROBES, only=of_priority),
    ToolCase("bashreadline", typed, only=lambda row, pid: "marker" in row["command"]),
    ToolCase("oomkill", out_of_memory, needs=PROBES, only=lambda row, pid: True),
]


@each_case(CASES)
def test_a_tool(case: ToolCase, trace: StartTrace) -> None:
    rows, expected = run_case(case, trace)
    compare(rows, expected, exact=case.exact)
