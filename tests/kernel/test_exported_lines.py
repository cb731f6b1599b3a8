"""Events as lines of JSON, of an agent on a real kernel: the load's own record is the oracle."""

import ctypes
import json
import select
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.kernel.workload import Child
from tests.support.joined_calls import nap
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("events/syscalls")

NAPS = [0.001 * number for number in range(1, 50)]
COMM = b'a"b\\\n{}\x1b'


def naps() -> None:
    ctypes.CDLL(None).prctl(15, COMM, 0, 0, 0)  # PR_SET_NAME
    for number, seconds in enumerate(NAPS):
        if number == len(NAPS) // 2:
            select.select([], [], [], 1.5)  # the lines so far are written by then
        nap(seconds)


def test_each_call_is_a_line(start_agent: StartAgent, tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    child = Child(naps)
    pid = child.tid
    agent = start_agent(
        "probes:\n"
        "  - name: nap\n"
        "    attach: syscall:clock_nanosleep\n"
        f"    export: {{as: line, where: 'tid == {pid}'}}\n"
        f"lines: {{to: {path}, max_size: 4KiB, files: 9}}\n"
    )
    begun = datetime.now(UTC)
    child.work()
    child.close()

    def exported() -> bool:
        found = agent.scrape().total("kprobe_exporter_otlp_exported_total", signal="lines")
        return found == len(NAPS)

    eventually(exported)
    files = sorted(tmp_path.glob("events.json.*"), reverse=True)
    assert files  # it was rotated
    lines = [json.loads(line) for file in [*files, path] for line in file.read_bytes().splitlines()]
    assert len(lines) == len(NAPS)
    lines.sort(key=itemgetter("time"))  # events of several CPUs come in any order
    for line, seconds in zip(lines, NAPS, strict=True):
        assert (line["probe"], line["kind"], line["tid"], line["return"]) == ("nap", "syscall", pid, 0)
        assert line["duration"] >= seconds
        assert "\n" not in line["comm"]
        moment = datetime.fromisoformat(line["time"][:26] + "+00:00")
        assert begun <= moment <= datetime.now(UTC)
    assert all(file.stat().st_mode & 0o007 == 0 for file in [path, *files])
