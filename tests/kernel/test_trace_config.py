"""A trace of a configuration: the events of its probes, in one session, are those of the load's processes."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kprobe_exporter.tracefs.files import MountedTracefs
from tests.support.patience import eventually, patience
from tests.support.trace_process import StartTrace

RUNS = 23
EXIT = b'"event": "exits"'
"""Of the probe that is enabled last."""

HOSTILE, SHOWN = "\x1b[31m ppid=1\n", r"\x1b[31m ppid=1\n"
LIFE = patience(2)
"""Seconds that the last process lives."""

CONFIG = """
lines: {to: stdout}
probes:
  - name: execs
    attach: "tracepoint:sched:sched_process_exec"
    fetch: {file: filename}
    metrics: [{counter: execs_total, labels: [file]}]
  - name: exits
    attach: "tracepoint:sched:sched_process_exit"
    metrics: [{counter: exits_total, labels: [comm, exe, ppid]}]
    export: {as: line, attributes: [argv, age]}
  - {name: idle, attach: "tracepoint:sched:sched_process_fork", enabled: false}
"""


@pytest.mark.needs("initial_pid_namespace")
def test_probes_of_a_configuration(trace: StartTrace, tmp_path: Path) -> None:
    file = tmp_path / "probes.yaml"
    file.write_text(CONFIG)
    file.chmod(0o600)
    running = trace("--json", "--config", str(file))
    running.wait_until_enabled(tracepoints=("sched/sched_process_exec", "sched/sched_process_exit"))
    expected: Counter[tuple[str, int]] = Counter()
    for _ in range(RUNS):
        with subprocess.Popen(["/bin/true"]) as child:
            expected[("execs", child.pid)] += 1
            expected[("exits", child.pid)] += 1
    running.wait_for(b'"tid": %d, "pid"' % child.pid)
    assert running.end() == 0
    found = [json.loads(line) for line in running.output.splitlines()]
    pids = {pid for _, pid in expected}
    assert Counter((one["event"], one["tid"]) for one in found if one["tid"] in pids) == expected
    files = {one["args"]["file"] for one in found if one["event"] == "execs" and one["tid"] in pids}
    assert files == {"/bin/true"}
    assert {one["event"] for one in found} == {"execs", "exits"}


@pytest.mark.needs("initial_pid_namespace")
def test_facts_of_processes(trace: StartTrace, files: MountedTracefs, tmp_path: Path) -> None:
    """Labels and attributes of a probe that are facts are shown with each event."""
    file = tmp_path / "probes.yaml"
    codes = ["exit_code"] if files.exists("kprobe_events") else []
    file.write_text(CONFIG.replace("ppid]", ", ".join(["ppid", *codes]) + "]"))
    file.chmod(0o600)
    running = trace("--json", "--config", str(file))
    eventually(lambda: not subprocess.run(["/bin/true"], check=True).returncode and EXIT in running.output)
    expected: dict[int, tuple[str, int]] = {}
    for number in range(RUNS):
        command = ["/bin/sh", "-c", f"exit {number}", HOSTILE]
        with subprocess.Popen(command) as child:
            assert child.wait() == number
            expected[child.pid] = f"/bin/sh -c exit {number} {SHOWN}", number
    with subprocess.Popen(["/bin/sleep", str(LIFE)]) as last:
        pass
    running.wait_for(b'"tid": %d, "pid"' % last.pid)
    assert running.end() == 0
    events = [json.loads(line) for line in running.output.splitlines()]
    assert not any("facts" in one for one in events if one["event"] == "execs")
    exits = {one["tid"]: one["facts"] for one in events if one["event"] == "exits"}
    for pid, (arguments, code) in expected.items():
        shown = exits[pid]
        assert list(shown) == [*sorted(["exe", "ppid", *codes]), "argv", "age"]
        assert (shown["exe"], shown["ppid"]) == ("/bin/sh", os.getpid())
        assert shown.get("exit_code", code) == code
        assert shown["argv"] in (arguments, None)  # unknown if it had ended before its exec was read
        assert 0 <= shown["age"] < LIFE
    assert exits[last.pid]["argv"] == f"/bin/sleep {LIFE}"  # it lived until its exec had been read
    assert LIFE <= exits[last.pid]["age"] < 2 * LIFE
