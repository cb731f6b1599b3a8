"""Where exactness ends: the kernel drops a record that does not fit in a page, and counts that nowhere."""

import mmap
import os
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.kernel_ids import kernel_tid

pytestmark = pytest.mark.needs("kprobe_events")

POINTER = "+u0($arg1)"
"""The path of chdir, a program's string."""
FITS, TOO_LONG = "/" * 3900, "/" * 4085
TIMES = 7


@pytest.mark.parametrize("source", ["binary", "text"])
def test_hits_tell_of_what_has_no_event(start_agent: StartAgent, source: str) -> None:
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: entered
    attach: kprobe:sys_chdir
    fetch: {{path: "{POINTER}:ustring"}}
    metrics: [{{counter: paths_total, where: 'path ~ "/*" && tid == {kernel_tid()}'}}]
  - {{name: called, attach: "syscall:chdir", filter: "common_pid == {kernel_tid()}"}}
""")
    where = Path.cwd()
    for path in (FITS, TOO_LONG):
        for _ in range(TIMES):
            os.chdir(path)
    os.chdir(where)
    metrics = agent.scrape()
    assert metrics.value("kprobe_hits_total", probe="entered") >= 2 * TIMES + 1
    assert metrics.value("kprobe_hits_total", probe="called") == 2 * TIMES + 1
    fitting = 1 if mmap.PAGESIZE == 4096 else 2
    assert metrics.value("kprobe_paths_total") == fitting * TIMES + 1
    lost = "kprobe_exporter_events_lost_total"
    assert {metrics.value(lost, **labels) for labels in metrics.labels(lost)} == {0}
