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
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
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


REUSED = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((noinline)) void hit(void) { __asm__(""); }

static void *hits(void *unused) {
    for (int times = 0; times < 5; times++) {
        hit();
        usleep(1000);  /* the kernel saves its process at the switch */
    }
    printf("%d\\n", gettid());
    return unused;
}

int main(int count, char **words) {
    pthread_t thread;
    if (count > 1) {
        pthread_create(&thread, 0, hits, 0);
        pthread_join(thread, 0);
    } else {
        char byte;
        read(0, &byte, 1);
        fcntl(0, F_SETFL, O_NONBLOCK);
        hit();
        while (read(0, &byte, 1) != 0);  /* busy until the event was read, if possible before a switch */
    }
    return 0;
}
"""

REUSED_CONFIG = """
global: {{tracefs_instance: kprobe_exporter_reused_ids, source: {source}}}
probes:
  - name: hit
    attach: "uprobe:{program}:hit"
    metrics: [{{counter: hit_total, labels: [pid]}}]
"""


@pytest.mark.needs("initial_pid_namespace", "uprobe_events")
@pytest.mark.parametrize("source", ["auto", "text"])
def test_a_process_with_the_id_of_an_ended_thread(
    start_agent: StartAgent, tmp_path: Path, source: str
) -> None:
    """In text the kernel prints the thread's process with the first events of the new one.

    The new one lives until its event was read. Text has no other source for the process of an ended one.
    """
    program = compiled(tmp_path / "program", REUSED, "-pthread")
    config = REUSED_CONFIG.format(source=source, program=program)
    agent = start_agent(config)
    used = [int(subprocess.check_output([program, "thread"])) for _ in range(10)]
    agent.scrape_until(lambda metrics: metrics.total("kprobe_hit_total") == 5 * len(used))
    agent.end()
    agent = start_agent(config)  # it knows none of these threads
    last = LAST_PID.read_text()
    expected: dict[str, int] = {}
    reused = 0
    for tid in used:
        LAST_PID.write_text(str(tid - 1))
        with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
            reused += process.pid == tid  # unless another process began in between
            expected[str(process.pid)] = 1
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            agent.scrape_until(lambda metrics: metrics.total("kprobe_hit_total") >= len(expected))
    LAST_PID.write_text(last)
    found = agent.scrape()
    assert {pid: found.value("kprobe_hit_total", pid=pid) for pid in expected} == expected
    assert reused
