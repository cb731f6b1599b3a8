"""The tools of the function tracers, against known calls. They leave the kernel's own tracer as it was."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.trace_process import TRACEFS, StartTrace

pytestmark = pytest.mark.needs("kprobe_events", "set_ftrace_filter")

TIMES = 137

PUPPET = f"""
import os, sys
for line in sys.stdin:
    for _ in range({TIMES}):
        os.getppid()
    print(flush=True)
"""

GLOBAL = ("current_tracer", "set_ftrace_filter", "set_ftrace_pid")


@pytest.fixture
def load() -> Iterator[subprocess.Popen[bytes]]:
    """A process that calls getppid(2) TIMES times for each line that it reads."""
    with subprocess.Popen(
        [sys.executable, "-c", PUPPET], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process


def calls(load: subprocess.Popen[bytes]) -> None:
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write(b"\n")
    load.stdin.flush()
    load.stdout.readline()


def settings() -> list[str]:
    return [(TRACEFS / name).read_text() for name in GLOBAL]


def getppid() -> str:
    """The function behind getppid(2)."""
    names = re.findall(
        r"^\w*sys_getppid$", (TRACEFS / "available_filter_functions").read_text(), re.MULTILINE
    )
    return str(names[0])


def has_graph() -> bool:
    """Whether an instance can have the tracer function_graph."""
    instance = TRACEFS / "instances" / "graph_of_test"
    instance.mkdir()
    try:
        return "function_graph" in (instance / "available_tracers").read_text().split()
    finally:
        instance.rmdir()


def test_each_call_is_a_line(trace: StartTrace, load: subprocess.Popen[bytes]) -> None:
    """Another process makes the same calls. The kernel may print another name of the same address.

    It notes a thread's name only when the thread leaves a CPU: before that the name is ``<...>``.
    """
    before, name = settings(), getppid()
    tool = trace("functrace", name, "-v", "-p", str(load.pid), command="tool")
    tool.wait_until_tracing()
    assert settings() == before
    for _ in range(TIMES):
        os.getppid()
    calls(load)
    assert tool.end() == 0, tool.errors
    lines = tool.output.splitlines()
    assert len(lines) == TIMES, tool.output
    pattern = rf" *(?:python\S*|<\.\.\.>)-{load.pid} .*: \w*sys_getppid <-\S+".encode()
    assert [line for line in lines if not re.fullmatch(pattern, line)] == []
    assert "lost" not in tool.errors
    assert settings() == before


def test_functions_of_a_command(trace: StartTrace, tmp_path: Path) -> None:
    """The pattern fits several functions; the processes that the command starts are traced, too."""
    tool = trace(
        "functrace", "*sys_getppid*", "-v", "-c", "sh -c 'sh -c :; sh -c :; sh -c :'", command="tool"
    )
    assert tool.wait() == 0, tool.errors
    pids = set(re.findall(rb"-(\d+) +\[", tool.output))
    assert len(pids) >= 3, tool.output


def test_the_tree_of_calls(trace: StartTrace, load: subprocess.Popen[bytes]) -> None:
    before, name = settings(), getppid()
    tool = trace("funcgraph", name, "-v", "-p", str(load.pid), command="tool")
    if not has_graph():
        assert tool.wait() == 1
        assert "the tracer 'function_graph' only for all users of tracefs together" in tool.errors
        return
    tool.wait_until_tracing()
    calls(load)
    assert tool.end() == 0, tool.errors
    assert len(re.findall(rb"\d us +\|  \w*sys_getppid\(\);", tool.output)) == TIMES, tool.output
    assert settings() == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["no_such_function_of_this_kernel"], "no function that can be traced fits"),
        (["c:malloc"], "is not a function of the kernel"),
        (["vfs_read", "--comm", "x"], "--comm narrows events alone"),
    ],
)
def test_refused(trace: StartTrace, words: list[str], why: str) -> None:
    tool = trace("functrace", *words, command="tool")
    assert tool.wait() in (1, 2)
    assert why in tool.errors
