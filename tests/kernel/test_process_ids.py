"""Events of threads that have ended before they are read have their process, however many ids there are."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import Metrics
from tests.support.compiling import compiled
from tests.support.joined_calls import lost
from tests.support.patience import within

PID_MAX = Path("/proc/sys/kernel/pid_max")
PROCESSES, THREADS = 120, 3

MOST = 0.9
"""The share of the threads whose process is known. One that starts and ends while the reader is between two
buffers is searched for in saved_tgids, within a budget that an emulated machine spends in a few searches."""

PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *ends(void *unused) { return unused; }

int main(int count, char **words) {
    for (int process = 0; process < atoi(words[1]); process++) {
        pid_t child = fork();
        if (child == 0) {
            for (int one = 1; one < atoi(words[2]); one++) {
                pthread_t thread;
                pthread_create(&thread, 0, ends, 0);
                pthread_join(thread, 0);
            }
            _exit(0);
        }
        waitpid(child, 0, 0);
        printf("%d\\n", child);
        usleep(1000000 / 24);
    }
    return 0;
}
"""

CONFIG = """
global: {tracefs_instance: kprobe_exporter_process_ids}
probes:
  - name: ends
    attach: tracepoint:sched:sched_process_exit
    metrics:
      - counter: ends_total
        help: Threads that ended.
        labels: [common_tgid]
"""


@pytest.fixture
def many_ids() -> Iterator[None]:
    """As many ids as 64-bit machines may have, where that can be set."""
    before = PID_MAX.read_text()
    try:
        PID_MAX.write_text("4194304")
        changed = True
    except OSError:
        changed = False
    yield
    if changed:
        PID_MAX.write_text(before)


@pytest.mark.needs("initial_pid_namespace")
def test_short_lived_threads_are_counted_by_process(
    start_agent: StartAgent, tmp_path: Path, many_ids: None
) -> None:
    """24 forks a second: the agent keeps counting, knows most of these processes, and stops when asked to."""
    program = compiled(tmp_path / "program", PROGRAM, "-pthread")
    agent = start_agent(CONFIG)
    output = subprocess.run(
        [program, str(PROCESSES), str(THREADS)], capture_output=True, text=True, check=True
    )
    processes = output.stdout.split()

    def counted(metrics: Metrics) -> list[float]:
        return [metrics.value("kprobe_ends_total", common_tgid=process) for process in processes]

    def unknown(metrics: Metrics) -> float:
        return metrics.value("kprobe_ends_total", common_tgid="unknown")

    ended = PROCESSES * THREADS
    metrics = agent.scrape_until(lambda metrics: sum(counted(metrics)) + unknown(metrics) >= ended)
    assert max(counted(metrics)) == THREADS
    assert sum(counted(metrics)) >= MOST * ended
    assert metrics.total("kprobe_exporter_decode_failures_total") == unknown(metrics)
    assert lost(agent) == {}
    os.kill(agent.pid, signal.SIGTERM)
    with within(5):
        assert agent.wait() == 0
