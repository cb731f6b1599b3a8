"""`kprobe:sys_NAME` is the function behind a system call, and `$argN` the call's own N-th argument."""

import ctypes
import json
import os

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.kernel_ids import kernel_tid
from tests.support.provoked_calls import TIMES, fsyncs_of_a_pipe, getppid
from tests.support.system_calls import function
from tests.support.trace_process import StartTrace
from tests.vm.kernels import FPROBES

pytestmark = pytest.mark.needs("kprobe_events")

LIBC = ctypes.CDLL(None, use_errno=True)
SPLICED = (1001, 1002, 1003, 1004, 1005, 6)
NAMES = ("fd_in", "off_in", "fd_out", "off_out", "len", "flags")
"""The arguments of splice(2), which fails, as these are no open files."""
ARGUMENTS = {name: f"$arg{number}:u64" for number, name in enumerate(NAMES, 1)}
EXPECTED = dict(zip(NAMES, SPLICED, strict=True))


def splice() -> None:
    for _ in range(TIMES):
        assert LIBC.splice(*map(ctypes.c_ulong, SPLICED)) == -1


def test_each_call_is_counted_under_the_name_as_written(start_agent: StartAgent) -> None:
    """fentry and fexit take the name of getppid's function that is traceable, where it has several."""
    kinds = ["kprobe", "kretprobe", "call"]
    if has(FPROBES):
        kinds += ["fentry", "fexit"]
    probes = {f"{kind}_{name}": f"{kind}:sys_{name}" for kind in kinds for name in ("fsync", "getppid")}
    listed = "".join(
        f"""
  - name: {name}
    attach: {target}
    filter: "common_pid == {kernel_tid()}"
    metrics: [{{counter: {name}_total, labels: [symbol]}}]"""
        for name, target in probes.items()
    )
    agent = start_agent(f"probes:{listed}\n")
    fsyncs_of_a_pipe()
    getppid()
    metrics = agent.scrape()
    for name, target in probes.items():
        assert metrics.value(f"kprobe_{name}_total", symbol=target.partition(":")[2]) == TIMES
    assert {one["probe"]: one["target"] for one in metrics.labels("kprobe_info")} == probes


def test_all_arguments(start_agent: StartAgent) -> None:
    agent = start_agent(f"""
probes:
  - name: spliced
    attach: kprobe:sys_splice
    fetch: {json.dumps(ARGUMENTS)}
    filter: "common_pid == {kernel_tid()}"
    metrics: [{{counter: spliced_total, labels: {json.dumps(list(NAMES))}}}]
""")
    splice()
    metrics = agent.scrape()
    labels = {name: str(value) for name, value in EXPECTED.items()}
    assert metrics.labels("kprobe_spliced_total") == [labels]
    assert metrics.value("kprobe_spliced_total", **labels) == TIMES


def test_trace(trace: StartTrace) -> None:
    fetched = " ".join(f"{name}={argument}" for name, argument in ARGUMENTS.items())
    text = trace("-L", str(os.getpid()), f"p:sys_splice {fetched}")
    objects = trace("--json", "-L", str(os.getpid()), f"kprobe:sys_splice {fetched}")
    for one in (text, objects):
        one.wait_until_enabled()
    splice()
    shown = " ".join(f"{name}={value}" for name, value in EXPECTED.items()).encode()
    text.wait_for(shown)
    objects.wait_for(b'"off_out": 1004')
    for one in (text, objects):
        assert one.end() == 0
        assert f"note: 'sys_splice' is '{function('splice')}' here." in one.errors
    assert text.output.count(shown) == TIMES
    found = [json.loads(line) for line in objects.output.splitlines()]
    assert [one["args"] for one in found] == [EXPECTED] * TIMES


def test_check_and_list() -> None:
    listed = CliRunner().invoke(main, ["list", "kprobe:sys_fsync"])
    assert (listed.exit_code, listed.stdout) == (0, "kprobe:sys_fsync\n")
    assert f"'sys_fsync' is '{function('fsync')}' here" in listed.stderr
    unknown = CliRunner().invoke(main, ["list", "kprobe:sys_getppidd"])
    assert unknown.exit_code == 1
    assert "did you mean 'sys_getppid'?" in unknown.stderr
