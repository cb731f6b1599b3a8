"""The largest value of a probe and the fields of its event are those of the load's own record."""

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterable
from html import unescape
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.compiling import compiled

parse: Callable[[str], Iterable[Metric]] = parser.text_string_to_metric_families
"""The client library has no type annotations for this function."""

pytestmark = pytest.mark.needs("uprobe_events")

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000L + at.tv_nsec;
}
static __thread long inner;
static int hostile;
/* Within both probes' readings of the clock. */
__attribute__((noinline)) int work(const char *file, long microseconds) {
    long begun = now();
    usleep(microseconds);
    inner = now() - begun;
    __asm__("" :: "r"(file));
    return (int)(microseconds % 977);
}
static void *calls(void *given) {
    long thread = (long)given;
    char comm[16], file[64];
    snprintf(comm, sizeof comm, hostile ? "t\"%ld\"\n}\xff" : "t %ld", thread);
    prctl(PR_SET_NAME, comm);
    for (int turn = 0; turn < 60; turn++) {
        long microseconds = 200 + (turn * 7919 + thread * 104729) % 700;
        if (turn == 31 + thread) microseconds = 20000 + 9000 * thread;
        snprintf(file, sizeof file, hostile ? "/<b>%ld\n\"%d\"</b>" : "/%ld %d", thread, turn);
        long begun = now();
        int returned = work(file, microseconds);
        long outer = now() - begun;
        printf("%ld %d %d %ld %ld\n", thread, turn, returned, inner, outer);
    }
    return NULL;
}
int main(int number, char **arguments) {
    hostile = number > 1 && *arguments[1] == 'h';
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) if (pthread_create(&threads[i], NULL, calls, (void *)i)) return 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return 0;
}
"""


def names(thread: int, turn: int, hostile: bool) -> dict[str, str]:
    """Return the labels of a call as they are shown: on one line, and without bytes that are not UTF-8.

    The client library does not parse an exemplar with an odd number of quotes.
    """
    if not hostile:
        return {"comm": f"t {thread}", "file": f"/{thread} {turn}"}
    return {"comm": f't"{thread}"\\n}}\\xff', "file": f'/<b>{thread}\\n"{turn}"</b>'}


def exemplars(agent: AgentProcess, name: str, probe: str) -> list[tuple[float, dict[str, str]]]:
    """Return the exemplars of a probe's histogram with their values."""
    request = urllib.request.Request(
        f"{agent.address}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    return [
        (one.exemplar.value, one.exemplar.labels)
        for family in parse(text)
        if family.name == name
        for one in family.samples
        if one.exemplar and one.labels["probe"] == probe
    ]


@pytest.mark.parametrize("source", ["auto", "text"])
def test_slowest_call_is_that_of_the_load(start_agent: StartAgent, tmp_path: Path, source: str) -> None:
    """Names have no newline where they are read from text, which cannot tell it from an event's end."""
    program, hostile = compiled(tmp_path / "program", PROGRAM, "-pthread"), source == "auto"
    agent = start_agent(f"""
global: {{source: {source}, tracefs_instance: worst}}
probes:
  - name: work
    attach: "ucall:{program}:work"
    returns: int
    fetch: {{file: "+0($arg1):string"}}
    worst: {{by: duration, keep: [comm, file], window: 10m}}
  - name: answer
    attach: "uretprobe:{program}:work"
    returns: int
    worst: {{by: return, window: 10m}}
""")
    assert "No event in the last 600 s." in agent.get("/probe/work")
    ran = subprocess.run(
        [program, "hostile" if hostile else "plain"], capture_output=True, text=True, check=True, timeout=60
    )
    calls = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
    assert len(calls) == 4 * 60
    counted = "kprobe_duration_seconds_count"
    shown = agent.scrape_until(lambda metrics: metrics.value(counted, probe="work") == len(calls))
    worst = shown.value("kprobe_worst_seconds", probe="work", by="duration")
    assert agent.scrape().value("kprobe_worst_seconds", probe="work", by="duration") == worst
    answer = shown.value("kprobe_worst_value", probe="answer", by="return")
    assert answer == max(returned for _, _, returned, _, _ in calls)

    # The probe fires between the program's readings of its clock, so each call has a least and a most.
    assert worst >= max(least for *_, least, _ in calls) / 1e9
    [(value, labels)] = exemplars(agent, "kprobe_duration_seconds", "work")
    assert value == worst
    possible = [(thread, turn) for thread, turn, _, least, most in calls if least <= value * 1e9 <= most]
    assert labels in [names(thread, turn, hostile) for thread, turn in possible]
    page = agent.get("/probe/work").replace("<wbr>", "")
    [text] = re.findall(r"at [^<]* UTC:</p>\n<ol>\n<li><b>[^<]* ms</b> <code>(.*)</code></li>", page)
    assert unescape(text) == f"comm={labels['comm']}, file={labels['file']}"
    assert not hostile or "<b>" not in text


@pytest.mark.needs("initial_pid_namespace")
def test_slowest_system_call_by_thread(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent("""
global: {tracefs_instance: worst}
probes:
  - name: sleep
    attach: syscall:clock_nanosleep
    filter: comm == "sleeper"
    worst: {by: duration, keep: [comm, tid], window: 10m}
""")
    sleeper = shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "sleeper")
    ran: dict[float, int] = {}
    for seconds in (0.05, 0.6, 0.02):
        with subprocess.Popen([sleeper, str(seconds)]) as process:
            assert process.wait() == 0
        ran[seconds] = process.pid
    counted = "kprobe_duration_seconds_count"
    shown = agent.scrape_until(lambda metrics: metrics.value(counted, probe="sleep") == len(ran))
    assert shown.value("kprobe_worst_seconds", probe="sleep", by="duration") >= 0.6
    [(_, labels)] = exemplars(agent, "kprobe_duration_seconds", "sleep")
    assert labels == {"comm": "sleeper", "tid": str(ran[0.6])}
