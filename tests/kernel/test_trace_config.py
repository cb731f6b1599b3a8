"""A trace of a configuration: the events of its probes, in one session, are those of the load's processes."""

import json
import subprocess
from collections import Counter
from pathlib import Path

from tests.support.trace_process import StartTrace

RUNS = 23
CONFIG = """
probes:
  - name: execs
    attach: "tracepoint:sched:sched_process_exec"
    fetch: {file: filename}
    metrics: [{counter: execs_total, labels: [file]}]
  - name: exits
    attach: "tracepoint:sched:sched_process_exit"
    metrics: [{counter: exits_total, labels: [comm]}]
  - {name: idle, attach: "tracepoint:sched:sched_process_fork", enabled: false}
"""


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
