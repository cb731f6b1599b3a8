"""Calls of a program's functions have the values, errors and durations that the program itself sees."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.joined_calls import BOUNDS, check, lost
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace

pytestmark = pytest.mark.needs("uprobe_events")

TIMES = 23
THREADS = 8
LINE = re.compile(rb"nap: \(nap\) asked=(?P<asked>\d+) duration=[\d.]+m?s return=(?P<returned>\d+)\n")

PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define OWN __attribute__((noinline, noclone))

/* A line for each call of nap and deeper: which one, and its seconds as seen from inside and outside. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

OWN long nap(long ms, double *least) {
    double began = now();
    usleep(ms * 1000);
    *least = now() - began;
    return ms;
}
static double least[4];
static int timed_deeper(int depth);
OWN int deeper(int depth) {   /* at least 150, 300, 600 and 1200 ms, from the inside out */
    double began = now();
    int below = depth ? timed_deeper(depth - 1) : -1;
    usleep(depth ? 75000 << depth : 150000);
    least[depth] = now() - began;
    return below + 1;
}
static int timed_deeper(int depth) {
    double began = now();
    int returned = deeper(depth);
    printf("%d %.9f %.9f\\n", depth, least[depth], now() - began);
    return returned;
}
OWN int fails(int with, const char *word) { __asm__("" :: "r"(word)); return -with; }

static void *napping(void *ms) {
    for (int i = 0; i < 3; i++) {
        double least, began = now();
        nap((long)ms, &least);
        printf("%ld %.9f %.9f\\n", (long)ms, least, now() - began);
    }
    return 0;
}

int main(int count, char **words) {
    int times = atoi(words[2]);
    if (!strcmp(words[1], "fail")) for (int i = 0; i < times; i++) fails(2, words[3]);
    if (!strcmp(words[1], "deep")) for (int i = 0; i < times; i++) timed_deeper(3);
    if (!strcmp(words[1], "nap")) {
        long ms[4] = {150, 300, 600, 1200};
        pthread_t threads[64];
        for (int i = 0; i < times; i++) pthread_create(&threads[i], 0, napping, (void *)ms[i % 4]);
        for (int i = 0; i < times; i++) pthread_join(threads[i], 0);
    }
    return 0;
}
"""


@pytest.fixture(scope="module", params=["-pie -fPIE", "-no-pie"], ids=["pie", "no-pie"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("program") / "program"
    return compiled(output, PROGRAM, "-pthread", *request.param.split())


def timed_calls(program: Path, *arguments: object) -> dict[str, list[tuple[float, float]]]:
    """Run the program; return the least and most seconds that each call took, by the call's argument."""
    command = [str(program), *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    calls: dict[str, list[tuple[float, float]]] = {}
    for line in output.splitlines():
        which, least, most = line.split()
        calls.setdefault(which, []).append((float(least), float(most)))
    return calls


def test_entries_and_returns(start_agent: StartAgent, program: Path) -> None:
    agent = start_agent(f"""
probes:
  - name: entry
    attach: uprobe:{program}:fails
    fetch: {{with: $arg1:s32, word: +0($arg2):string}}
    metrics: [{{counter: entries_total, labels: [with, word, comm, symbol]}}]
  - {{name: back, attach: "uretprobe:{program}:fails", returns: errno}}
  - {{name: plain, attach: "uretprobe:{program}:fails", returns: int}}
  - {{name: only_counted, attach: "uprobe:{program}:fails"}}
  - name: whole
    attach: ucall:{program}:fails
    fetch: {{word: +0($arg2):string}}
    returns: int
    metrics:
      - counter: failed_total
        where: return < 0
        labels: {{word: word, errno: {{field: return, decode: errno}}}}
""")
    subprocess.run([program, "fail", str(TIMES), "two words"], check=True)
    metrics = agent.scrape()
    labels = {"with": "2", "word": "two words", "comm": "program", "symbol": "fails"}
    assert metrics.value("kprobe_entries_total", **labels) == TIMES
    assert metrics.value("kprobe_return_errors_total", probe="back", errno="ENOENT") == TIMES
    assert metrics.value("kprobe_return_errors_total", probe="plain", errno="-2") == TIMES
    assert metrics.value("kprobe_failed_total", word="two words", errno="ENOENT") == TIMES
    assert metrics.value("kprobe_duration_seconds_count", probe="whole") == TIMES
    probes = ("entry", "back", "plain", "only_counted", "whole")

    def hits() -> list[float]:
        told = agent.scrape()
        return [told.value("kprobe_hits_total", probe=probe) for probe in probes]

    eventually(lambda: hits() == [TIMES] * len(probes))
    plans = {info["probe"]: info["plan"] for info in metrics.labels("kprobe_info")}
    assert plans == {probe: "count" if probe == "only_counted" else "events" for probe in probes}
    assert lost(agent) == {}


def test_naps_of_eight_threads_at_once(start_agent: StartAgent, program: Path) -> None:
    agent = start_agent(f"""
probes:
  - name: nap
    attach: ucall:{program}:nap
    fetch: {{asked: $arg1:s64}}
    metrics:
      - {{histogram: nap_seconds, value: duration, labels: [asked, return], buckets: {list(BOUNDS)}}}
""")
    naps = timed_calls(program, "nap", THREADS)
    assert {ms: len(calls) for ms, calls in naps.items()} == dict.fromkeys(("150", "300", "600", "1200"), 6)
    metrics = agent.scrape()
    for ms, calls in naps.items():
        check(metrics, "kprobe_nap_seconds", calls, asked=ms, **{"return": ms})
    assert lost(agent) == {}


def test_a_function_that_calls_itself(start_agent: StartAgent, program: Path) -> None:
    agent = start_agent(f"""
probes:
  - name: deeper
    attach: ucall:{program}:deeper
    returns: int
    metrics: [{{histogram: deep_seconds, value: duration, labels: [return], buckets: {list(BOUNDS)}}}]
""")
    calls = timed_calls(program, "deep", 2)
    assert {depth: len(calls[depth]) for depth in calls} == dict.fromkeys("0123", 2)
    metrics = agent.scrape()
    for depth, durations in calls.items():
        check(metrics, "kprobe_deep_seconds", durations, **{"return": depth})
    assert metrics.value("kprobe_exporter_events_total", probe="deeper") == 2 * 4
    assert lost(agent) == {}


def test_calls_at_a_terminal(trace: StartTrace, program: Path) -> None:
    """A condition on the duration, next to the argument of the entry: of four naps three are longer."""
    running = trace(f"ucall:{program}:nap asked=$arg1:s64", "duration > 200ms")
    running.wait_until_enabled()
    naps = timed_calls(program, "nap", THREADS)
    surely = Counter(ms for ms, calls in naps.items() for least, _ in calls if least > 0.2)
    perhaps = Counter(ms for ms, calls in naps.items() for _, most in calls if most > 0.2)
    assert set(surely) >= {"300", "600", "1200"}
    eventually(lambda: len(LINE.findall(running.output)) >= surely.total())
    assert running.end() == 0
    found = [line.groupdict() for line in LINE.finditer(running.output)]
    assert all(line["asked"] == line["returned"] for line in found)
    assert surely <= Counter(line["asked"].decode() for line in found) <= perhaps
