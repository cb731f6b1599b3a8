"""``time`` of the agent: a program's classes are those of its own clock, and all add up to the threads."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from urllib.request import Request, urlopen

import pytest

from tests.kernel.conftest import StartAgent
from tests.kernel.tools.time_mix import margin
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.block_devices import null_block
from tests.support.compiling import compiled
from tests.support.folded import folded
from tests.support.patience import patience
from tests.support.unified_cgroup import group, statistics

CONFIG = """
global: {{tracefs_instance: times, buffer_size: 4MiB, limit: none, max_series: 5000}}
time: {{by: [{by}], limit: none}}
"""
TOTAL, UNACCOUNTED = "kprobe_time_seconds_total", "kprobe_time_unaccounted_seconds_total"
PROGRAM = "import json; from tests.kernel.tools.time_mix import Mix; print(json.dumps(Mix().measured()))"

MOST_UNKNOWN = 0.25
"""The share of a class that may be unaccounted: see tests/kernel/tools/test_time.py."""


def run_mix(directory: Path) -> tuple[str, dict[str, float]]:
    """Run the mix of tests/kernel/tools/time_mix.py as a program of its own; return its path and facts."""
    program = directory / "mix"
    shutil.copy(Path(sys.executable).resolve(), program)
    paths = {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command, whole_env = [str(program), "-c", PROGRAM], os.environ | paths
    done = subprocess.run(command, env=whole_env, capture_output=True, text=True, check=True, timeout=120)
    facts: dict[str, float] = json.loads(done.stdout)
    return str(program), facts


def number_of_threads() -> int:
    """Return the number of threads of the machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def settled(agent: AgentProcess) -> Metrics:
    """Return a scrape with what has happened until now: the time of all threads is added up once a second."""
    time.sleep(1.5)
    return agent.scrape()


def test_classes_of_a_program(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(CONFIG.format(by="exe"))
    program, facts = run_mix(tmp_path)
    shown = settled(agent)
    found = {name: shown.value(TOTAL, exe=program, **{"class": name}) for name in facts if name in CLASSES}
    unknown = shown.value(TOTAL, exe=program, **{"class": "unaccounted"})
    assert unknown < MOST_UNKNOWN * shown.total(TOTAL, exe=program)
    for name, seconds in found.items():
        measured = facts[name]
        within = margin(measured) + shown.value(TOTAL, exe=program, **{"class": "waiting_for_cpu"})
        assert measured - unknown - within <= seconds <= measured + within, (name, found)
    unaccounted = shown.total(TOTAL, **{"class": "unaccounted"})
    assert shown.value(UNACCOUNTED) == pytest.approx(unaccounted, rel=1e-9)
    stacks = folded(agent, "time")
    assert any(stack[0] == "pipe" and any("pipe_read" in one for one in stack) for stack in stacks)


DRAWN = r"""
/* Threads that do what they are told: a letter and milliseconds for each phase, a word for each thread.
 * Each measures a phase by its own clock, less what the scheduler says that it ran or waited for a CPU. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static pthread_mutex_t locked = PTHREAD_MUTEX_INITIALIZER, sums = PTHREAD_MUTEX_INITIALIZER;
static double total[128], made[256], lived;
static double clock_of(clockid_t id) {
    struct timespec at;
    clock_gettime(id, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}
static double on_queue(void) {  /* ran, and waited for a CPU */
    unsigned long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (fscanf(file, "%llu %llu", &ran, &waited) != 2) exit(3);
    fclose(file);
    return clock_of(CLOCK_THREAD_CPUTIME_ID) + waited / 1e9;
}
static void burn(double seconds) {
    double end = clock_of(CLOCK_THREAD_CPUTIME_ID) + seconds;
    while (clock_of(CLOCK_THREAD_CPUTIME_ID) < end) {}
}
static void phase(char what, long ms) {
    struct timespec until;
    struct timespec length = {ms / 1000, ms % 1000 * 1000000};
    struct timeval limit = {ms / 1000, ms % 1000 * 1000};
    int ends[2];
    char byte;
    switch (what) {
    case 'r': burn(ms / 1e3); break;
    case 's': nanosleep(&length, NULL); break;
    case 'o': poll(NULL, 0, ms); break;
    case 'l':
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += (until.tv_nsec + length.tv_nsec) / 1000000000 + length.tv_sec;
        until.tv_nsec = (until.tv_nsec + length.tv_nsec) % 1000000000;
        pthread_mutex_timedlock(&locked, &until);
        break;
    case 'n':
        socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
        setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        recv(ends[0], &byte, 1, 0);
        close(ends[0]);
        close(ends[1]);
        break;
    }
}
static char **all_words;
static void *run(void *place) {
    long number = (long)place;
    for (char *at = all_words[number]; *at; at++) {
        char what = *at;
        long ms = strtol(at + 1, &at, 10);
        double begun = clock_of(CLOCK_MONOTONIC), before = on_queue();
        phase(what, ms);
        double took = clock_of(CLOCK_MONOTONIC) - begun - (what == 'r' ? 0 : on_queue() - before);
        pthread_mutex_lock(&sums);
        total[(int)what] += what == 'r' ? ms / 1e3 : took;
        pthread_mutex_unlock(&sums);
        if (*at == 0) break;
    }
    pthread_mutex_lock(&sums);
    lived += clock_of(CLOCK_MONOTONIC) - made[number];
    pthread_mutex_unlock(&sums);
    return NULL;
}
int main(int number, char **words) {
    double begun = clock_of(CLOCK_MONOTONIC);
    pthread_t threads[number];
    all_words = words;
    pthread_mutex_lock(&locked);
    for (long i = 1; i < number; i++) {
        made[i] = clock_of(CLOCK_MONOTONIC);
        if (pthread_create(&threads[i], NULL, run, (void *)i)) return 2;
    }
    for (int i = 1; i < number; i++) pthread_join(threads[i], NULL);
    for (const char *what = "rsoln"; *what; what++) printf("%c %.6f\n", *what, total[(int)*what]);
    printf("L %.6f\n", lived + clock_of(CLOCK_MONOTONIC) - begun);
    return 0;
}
"""
LETTERS = {"s": "sleep", "o": "poll", "n": "network"}
"""The phases whose classes the program is in for them alone: its first thread waits in \"lock\"."""


def drawn_words(random: Random, threads: int) -> list[str]:
    """Draw what each thread does, and for how many milliseconds."""
    return [
        ",".join(f"{random.choice('rsoln')}{random.randint(1, 80)}" for _ in range(random.randint(1, 6)))
        for _ in range(threads)
    ]


@pytest.mark.parametrize("threads", [4, 64])
def test_drawn_mixes(start_agent: StartAgent, tmp_path: Path, random: Random, threads: int) -> None:
    """Threads that begin and end, on all CPUs: each class is what they measured, or is unaccounted."""
    agent = start_agent(CONFIG.format(by="exe"))
    for number in range(3):
        program = compiled(tmp_path / f"drawn{number}", DRAWN, "-pthread")
        words = drawn_words(random, threads)
        done = subprocess.run([program, *words], capture_output=True, text=True, check=True, timeout=120)
        measured = {line[0]: float(line[2:]) for line in done.stdout.splitlines()}
        shown = settled(agent)

        def of(class_: str, program: Path = program, shown: Metrics = shown) -> float:
            return shown.value(TOTAL, exe=str(program), **{"class": class_})

        unknown, slack = of("unaccounted"), 0.01 + threads * 0.001 + 2 * of("waiting_for_cpu")
        for letter, class_ in LETTERS.items():
            seconds, least = measured[letter], measured[letter] - unknown
            within = margin(seconds) + slack
            assert least - within <= of(class_) <= seconds + within, (class_, measured, words)
        assert measured["r"] - unknown - margin(measured["r"]) <= of("running")
        whole = shown.total(TOTAL, exe=str(program))
        assert unknown < MOST_UNKNOWN * whole
        # The start and the end of the process are no part of what it measured, nor a thread's wait to end.
        most = measured["L"] + of("waiting_for_cpu") + patience(0.02) + threads * 0.001
        assert 0.99 * measured["L"] - 0.001 <= whole <= 1.01 * most
        print(f"{threads} threads lived {measured['L']:.3f} s, and {whole:.3f} s were added up")


LIMITED = """
global: {tracefs_instance: times, buffer_size: 4MiB, limit: none}
time: {by: [exe], classes: [throttled, reclaim], limit: none}
probes:
  - name: reclaims
    attach:
      pair:
        from: "tracepoint:vmscan:mm_vmscan_memcg_reclaim_begin"
        to: "tracepoint:vmscan:mm_vmscan_memcg_reclaim_end"
        key: tid
    limit: none
"""

USES = r"""
/* In a cgroup, which it enters itself, uses the CPU for some seconds, or reads 64 MiB of a file. */
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static char block[1 << 20];
static void enter(const char *procs) {
    int file = open(procs, O_WRONLY);
    if (write(file, "0", 1) != 1) exit(1);
    close(file);
}
static double used(void) {
    struct timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}
int main(int number, char **words) {
    if (number < 3) return 2;
    int file = open(words[2], O_RDONLY);
    enter(words[1]);
    double until = used() + atof(words[2]);
    for (int i = 0; file >= 0 && i < 64; i++) if (read(file, block, sizeof block) < 0) return 3;
    while (used() < until) {}
    return 0;
}
"""


def limited(agent: AgentProcess, program: Path) -> dict[str, float]:
    """Return the seconds of a program by class."""
    shown = settled(agent)
    every = [one for one in shown.labels(TOTAL) if one["exe"] == str(program)]
    return {one["class"]: shown.value(TOTAL, **one) for one in every}


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("below", ["", "held/"])
def test_quota_of_a_cgroup(start_agent: StartAgent, tmp_path: Path, below: str) -> None:
    """Waits of a thread whose cgroup, or one above it, has no quota left, by the kernel's own counter."""
    program = compiled(tmp_path / "uses", USES)
    agent = start_agent(LIMITED)
    with group(f"{below}quota", "cpu") as where:
        limit = where if not below else where.parent
        (limit / "cpu.max").write_text("20000 100000")
        subprocess.run(["taskset", "-c", "1", program, where / "cgroup.procs", "0.3"], check=True)
        found, counted = limited(agent, program), statistics(limit)["throttled_usec"] / 1e6
    print(f"throttled for {counted:.6f} s: {found}")
    assert counted > 0.5
    unknown = found.get("unaccounted", 0.0)
    # The kernel also counts the rest of the period in which the program ends.
    assert 0.99 * counted - unknown - 0.1 <= found["throttled"] <= 1.01 * counted + 0.001
    assert found["running"] >= 0.9 * 0.3 - unknown


@pytest.mark.needs("kprobe_events")
def test_memory_limit_of_a_cgroup(start_agent: StartAgent, tmp_path: Path) -> None:
    """Of a program that makes room for what it reads, the kernel's events tell how long that takes."""
    program = compiled(tmp_path / "uses", USES)
    agent = start_agent(LIMITED)
    with null_block() as device, group("small", "memory") as where:
        (where / "memory.max").write_text(str(8 << 20))
        subprocess.run([program, where / "cgroup.procs", device], check=True)
        found, shown = limited(agent, program), agent.scrape()
    took = shown.value("kprobe_duration_seconds_sum", probe="reclaims")
    print(f"reclaimed for {took:.6f} s: {found}")
    assert shown.value("kprobe_duration_seconds_count", probe="reclaims") > 10
    unknown = sum(found.get(name, 0.0) for name in ("unaccounted", "waiting_for_cpu"))
    assert 0.99 * took - unknown - 0.001 <= found["reclaim"] <= 1.01 * took + 0.001


CLASSES = ("sleep", "poll", "pipe", "network")
"""Those in which the program is for its phases alone: it starts, and waits for its threads, in others."""


@pytest.mark.needs("initial_pid_namespace")
@pytest.mark.parametrize("between", ["reload", "kill"])
def test_all_classes_add_up_to_the_threads(start_agent: StartAgent, between: str) -> None:
    """Over a reload, which keeps the threads; and after SIGKILL, when another agent finds them anew."""
    agent = start_agent(CONFIG.format(by=""), "--web.enable-lifecycle")
    if between == "kill":
        settled(agent)
        agent.end(signal.SIGKILL)
        agent = start_agent(CONFIG.format(by=""))
    before, begun, threads = settled(agent).total(TOTAL), time.monotonic(), [number_of_threads()]
    if between == "reload":
        urlopen(Request(f"{agent.address}/-/reload", method="POST"), timeout=30).close()
    for _ in range(20):
        time.sleep(0.2)
        threads.append(number_of_threads())
    added, passed = agent.scrape().total(TOTAL) - before, time.monotonic() - begun
    # At each scrape, the last second of some threads may be missing.
    assert min(threads) > 10
    assert (passed - 1.5) * 0.97 * min(threads) <= added <= (passed + 1.5) * 1.03 * max(threads)
