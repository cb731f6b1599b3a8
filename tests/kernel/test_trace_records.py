"""`trace --json` and `--count` report exactly what happened; `--emit-config` makes the agent do the same."""

import ctypes
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.kernel.workload import FORGED, Child
from tests.support.joined_calls import nap
from tests.support.patience import eventually
from tests.support.system_calls import entry, function
from tests.support.trace_process import StartTrace, TraceProcess, traces
from tests.vm.kernels import EPROBES

pytestmark = pytest.mark.needs("kprobe_events")

MOST = 23
NAP = 0.05

Object: TypeAlias = dict[str, Any]

ARRAY = b"{1,2}"
"""A file name that looks like the kernel's text of an array, as does COMM, the name of the process."""

COMM = b"{7}"

ALIKE, NONE = "kprobe:seq_*", "kprobe:c_st*"
"""Patterns of functions, some or all of which share their names with others; newer kernels refuse these."""

ME = str(os.getpid())
TRACES = {
    "return": ("-s", "-p", "PID", "r:mine do_sys_openat2 rval=$retval:s32"),
    "entry": ("-L", "PID", "p:mine do_sys_openat2 name=+0($arg2):string"),
    "call": ("-L", "PID", "call:hrtimer_nanosleep"),
    # Not the function of "return": with two return probes on a function, one does not know its caller.
    "filtered": ("-L", "PID", "call:sys_openat", "return < 0"),
    "tracepoint": ("sched:sched_process_exec",),
}


@dataclass(frozen=True)
class Traced:
    """What concurrent traces gave of a process that opened files, slept, and executed another program."""

    pid: int
    objects: dict[str, list[Object]]


def program() -> None:
    ctypes.CDLL(None).prctl(15, COMM, 0, 0, 0)  # PR_SET_NAME
    with suppress(OSError):
        os.open(FORGED, os.O_RDONLY)
    with suppress(OSError):
        os.open(ARRAY, os.O_RDONLY)
    nap(NAP)
    os.execv("/bin/true", ["true"])


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, tracefs: object) -> Traced:
    child = Child(program)
    pid = child.pid
    with traces(tmp_path_factory.mktemp("traces")) as start:
        running = {
            name: start("--json", *(str(pid) if word == "PID" else word for word in arguments))
            for name, arguments in TRACES.items()
        }
        for one in running.values():
            one.wait_until_enabled()
        child.work()
        child.close()
        for one in running.values():
            one.wait_for(b'"tid": %d' % pid)
        assert [one.end() for one in running.values()] == [0] * len(running)
        notes = {"filtered": f"kprobe-exporter: note: 'sys_openat' is '{function('openat')}' here.\n"}
        assert {name: one.errors for name, one in running.items() if one.errors} == notes
        lines = {name: one.output.splitlines() for name, one in running.items()}
    return Traced(pid, {name: [json.loads(line) for line in found] for name, found in lines.items()})


def test_a_return_with_its_stack(traced: Traced) -> None:
    found = next(each for each in traced.objects["return"] if each["return"] < 0)
    assert found.pop("caller")
    stack = found.pop("stack")
    assert entry() in stack if has(EPROBES) else stack[-1] == "kretprobe_trampoline"  # docs/collecting.md
    assert found.pop("time_ns") in range(time.monotonic_ns())
    assert found.pop("cpu") in os.sched_getaffinity(0)
    assert found == {
        "event": "mine",
        "kind": "kretprobe",
        "target": "kretprobe:do_sys_openat2",
        "tid": traced.pid,
        "pid": traced.pid,
        "comm": COMM.decode(),
        "return": -2,
        "error": "ENOENT",
        "args": {"rval": -2},
    }


def test_a_name_of_a_file_forges_nothing(traced: Traced) -> None:
    names = [each["args"]["name"].encode() for each in traced.objects["entry"]]  # a list has no encode()
    assert [name for name in names if b"forged" in name] == [FORGED]
    assert [each["comm"].encode() for each in traced.objects["entry"]][names.index(ARRAY)] == COMM


def test_a_call_has_its_duration(traced: Traced) -> None:
    (found,) = traced.objects["call"]
    assert found["duration_ns"] >= NAP * 1e9
    assert found["return"] == 0


def test_a_filter_on_what_both_events_of_a_call_tell(traced: Traced) -> None:
    found = traced.objects["filtered"]
    assert len(found) >= 2
    assert {each["error"] for each in found} == {"ENOENT"}


def test_a_tracepoint_has_all_its_fields(traced: Traced) -> None:
    (found,) = [each for each in traced.objects["tracepoint"] if each["tid"] == traced.pid]
    assert found["args"] == {"filename": "/bin/true", "pid": traced.pid, "old_pid": traced.pid}


def test_counts(trace: StartTrace) -> None:
    """Counts are exact at the end on a pipe, and live on a terminal, with a row for each function matched."""
    piped = trace("--count", "-L", ME, "r:mine do_sys_openat2")
    live = trace("--count", "call:do_sys_openat2", terminal=True)
    pattern = trace("--count", "kprobe:vfs_re*", terminal=True)
    piped.wait_until_enabled()
    for _ in range(MOST):
        with suppress(OSError):
            os.open("/nonexistent", os.O_RDONLY)
    eventually(reading_until(live, rb"duration.*\n.*duration.*\n.*duration"), 60)
    eventually(reading_until(pattern, rb"\nvfs_read +[\d,]+ +[1-9]"), 60)
    for one in (live, pattern):
        one.type(b"\x03")
    assert [piped.end(), live.wait(), pattern.wait()] == [0, 0, 0]
    title, _, header, row, *_ = piped.output.decode().splitlines()
    assert title.startswith("kprobe mine")
    assert header.split() == ["probe", "hits/s", "hits", "errors", "missed"]
    assert row.split()[3] == str(MOST)
    assert f"errors: ENOENT {MOST}\n" in piped.output.decode()
    assert b"\x1b" not in piped.output
    assert b"A\x1b[J" in live.output
    assert "█".encode() in live.output
    assert b"\nvfs_rename " in pattern.output


@pytest.mark.needs("available_filter_functions_addrs")
def test_what_the_kernel_refuses_of_a_pattern(trace: StartTrace, tracefs: Path) -> None:
    """The refused functions of a pattern are reported, and the rest is counted, or shown."""
    counts = Counter(line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines())
    listed = (tracefs / "available_filter_functions").read_text().splitlines()
    matched = {name for name, *_ in map(str.split, listed) if name.startswith("seq_")}
    single = sorted(name for name in matched if counts[name] == 1)
    assert 0 < len(single) < len(matched)
    count, objects, none = (
        trace(*arguments) for arguments in (["--count", ALIKE], ["--json", ALIKE], ["--count", NONE])
    )
    for one in (count, objects):
        one.wait_until_enabled(("1\n", "1*\n", "0*\n"))
    Path("/proc/crypto").read_text()
    assert [count.end(), objects.end(), none.wait()] == [0, 0, 1]
    rows = [line.split()[0] for line in count.output.decode().splitlines()[3:] if line.strip()]
    assert sorted(rows) == single
    assert b'"target": "kprobe:seq_printf"' in objects.output
    refused = len(matched) - len(single)
    for one in (count, objects):
        said = f"warning: {len(matched)} match the pattern, and {refused} of them are refused, such as "
        assert re.fullmatch(rf"kprobe-exporter: {said}kprobe:seq_\w+: [^\n]*\.\n", one.errors)
    assert none.errors.startswith("kprobe-exporter: nothing that the pattern matches can be traced, such as ")
    assert none.errors.count("\n") == 1


def reading_until(trace: TraceProcess, pattern: bytes) -> Callable[[], bool]:
    """Return a function that opens and reads files, and then returns whether the output matches."""

    def matches() -> bool:
        for _ in range(50):
            Path("/etc/hostname").read_text()
        return re.search(pattern, trace.output, re.DOTALL) is not None

    return matches


def test_the_configuration_makes_the_agent_do_it(start_agent: StartAgent) -> None:
    result = CliRunner().invoke(
        main, ["trace", "--emit-config", "r:mine do_sys_openat2 rval=$retval:s32", "rval == -2"]
    )
    assert result.exit_code == 0
    agent = start_agent(result.output)
    with suppress(OSError):
        os.open("/nonexistent", os.O_RDONLY)
    eventually(lambda: agent.scrape().value("kprobe_return_errors_total", probe="mine", errno="ENOENT") >= 1)
