"""Paths and arguments of system calls are those that strace sees in the same processes."""

import os
import re
import shutil
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.kernel.traced_strings import HOSTILE, MOST, objects, text
from tests.kernel.workload import Child
from tests.support.compiling import compiled
from tests.support.trace_process import StartTrace

pytestmark = [
    pytest.mark.needs("kprobe_events"),
    pytest.mark.skipif(shutil.which("strace") is None and not os.environ.get("CI"), reason="no strace"),
]

OPENS, EXECS = 100, 20
LAST = "/nonexistent/last"
PROGRAM = f"""
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words) {{
  for (int word = 1; word < count; word++) {{
    int file = open(words[word], O_RDONLY);
    if (file >= 0) close(file);
  }}
  for (int word = 1; word < count; word += {OPENS // EXECS}) {{
    if (!fork()) {{
      execv("/bin/true", words + word);
      _exit(1);
    }}
    wait(0);
  }}
  open("{LAST}", O_RDONLY);
  execv("{LAST}", words);
  return 0;
}}
"""

CALL = re.compile(
    r'(?P<pid>\d+) +(?P<call>openat|execve)\((?:AT_FDCWD, )?"(?P<path>(?:\\x..)*)"'
    r"(?:, \[(?P<words>[^\]]*)\])?, .*\) += (?P<result>-?\d+)(?: (?P<error>[A-Z]+))?"
)
"""A line of ``strace -f -xx``."""


def unescaped(written: str) -> str:
    return text(bytes.fromhex(written.replace("\\x", "")))


def seen_by_strace(lines: list[str]) -> dict[tuple[int, str], list[tuple[Any, ...]]]:
    """Return the paths, arguments and errors of each process's calls of each kind, in order."""
    found = defaultdict(list)
    for line in lines:
        call = CALL.match(line)
        assert call is not None or "exited with" in line or "SIGCHLD" in line, line
        if call is None:
            continue
        words = [unescaped(one) for one in re.findall(r'"((?:\\x..)*)"', call["words"] or "")]
        argv = " ".join(words[:MOST] + (["..."] if len(words) > MOST else []))
        found[int(call["pid"]), call["call"]].append((unescaped(call["path"]), argv, call["error"]))
    return found


def test_same_calls_as_strace(trace: StartTrace, tmp_path: Path, random: Random) -> None:
    program, log = compiled(tmp_path / "calls", PROGRAM), tmp_path / "strace"
    names = [b"/etc/hostname", b"/nonexistent", *HOSTILE]
    words = [
        random.choice(names) + random.randbytes(9).hex().encode() * random.randint(0, 9) for _ in range(OPENS)
    ]
    options: list[str | bytes] = [
        "strace",
        "-f",
        "-xx",
        "-s",
        "4096",
        "-e",
        "trace=openat,execve",
        "-o",
        str(log),
    ]
    child = Child(lambda: os.execvp("strace", [*options, str(program), *words]))
    scope = ("--json", "-p", str(child.pid), "--children")
    opens = trace(*scope, "syscall:openat file=filename:string")
    execs = trace(*scope, f"syscall:execve file=filename:string argv=argv:strings[{MOST}]")
    for running in (opens, execs):
        running.wait_until_enabled()
    child.work()
    child.close()
    shown = defaultdict(list)
    for call, running in (("openat", opens), ("execve", execs)):
        running.wait_for(LAST.encode(), 60)
        assert running.end() == 0
        for one in objects(running):
            args = one["args"]
            shown[one["tid"], call].append((args["file"], args.get("argv", ""), one.get("error")))
    seen = seen_by_strace(log.read_text().splitlines())
    assert sum(len(calls) for (_, call), calls in seen.items() if call == "openat") > OPENS
    assert sum(call == "execve" for _, call in seen) == EXECS + 1
    for key, calls in seen.items():
        assert shown[key] == calls
