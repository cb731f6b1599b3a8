"""The real process over captured input: its metrics are the golden ones, and promtool accepts them.

UPDATE_GOLDEN=1 rewrites the golden files; review the changes before committing them.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.agent_process import AgentProcess
from tests.e2e.conftest import FIXTURES, PlayBack
from tests.support.patience import eventually

GOLDEN = Path(__file__).parent / "golden"

CONFIG = """
probes:
  - name: cap_open
    attach: kprobe:do_sys_openat2
    fetch: {dfd: "$arg1:s32", path: "+0($arg2):ustring"}
    metrics:
      - counter: opens_total
        help: Opens by who and what.
        labels: [comm, path, dfd]
  - name: cap_open_ret
    attach: kretprobe:do_sys_openat2
    returns: void
    fetch: {ret: "$retval:s64"}
    metrics:
      - counter: open_results_total
        help: Results of opens.
        labels: {errno: {field: ret, decode: errno}, comm: comm, caller: caller}
      - histogram: opened_fd
        help: Descriptors that opens gave.
        value: ret
        buckets: [-1, 4, 8, 16]
  - name: cap_exit_openat
    attach: tracepoint:syscalls:sys_exit_openat
    fetch: {ret: ret}
    metrics:
      - gauge: last_open_result
        help: The last result of openat.
        value: ret
        labels: {tid: tid}
"""

STREAMS = {"cap_open": "kprobe.txt", "cap_open_ret": "kretprobe.txt"}


def text_of(agent: AgentProcess) -> str:
    """The metrics that the captured events caused, without those that vary from run to run."""
    own = ("kprobe_up", "kprobe_info", "kprobe_exporter_build", "kprobe_exporter_config")
    lines = agent.get().splitlines()
    wanted = (line for line in lines if "kprobe_" in line and "_age_" not in line and "duration" not in line)
    return "\n".join(line for line in wanted if not line.startswith(own)) + "\n"


def streams(kernel: str) -> dict[str, Path]:
    return {event: FIXTURES / kernel / "trace_pipe" / file for event, file in STREAMS.items()}


@pytest.mark.parametrize("kernel", ["6.1", "6.12"])
def test_golden_metrics(play_back: PlayBack, promtool: str, kernel: str) -> None:
    agent = play_back(CONFIG, streams(kernel))
    expected = sum(path.read_bytes().count(b": (") for path in streams(kernel).values())

    def all_read() -> bool:
        metrics = agent.scrape()
        events = sum(
            metrics.value("kprobe_exporter_events_total", probe=probe) for probe in STREAMS
        ) + metrics.value("kprobe_exporter_events_lost_total", reason="unparsed")
        return events >= expected

    eventually(all_read)
    text = text_of(agent)
    golden = GOLDEN / f"{kernel}.prom"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    check = subprocess.run(
        [promtool, "check", "metrics"], input=agent.get(), capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
    assert agent.end() == 0
    assert "Traceback" not in agent.output()
