"""A pair with events in between: the time of each is what the program itself measured."""

import subprocess
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled

pytestmark = pytest.mark.needs("uprobe_events")

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
__attribute__((noinline)) void queued(long id) { __asm__("" :: "r"(id)); }
__attribute__((noinline)) void sent(long id) { __asm__("" :: "r"(id)); }
__attribute__((noinline)) void done(long id) { __asm__("" :: "r"(id)); }
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}
int main(void) {
    double until_sent = 0, whole = 0;
    for (long id = 0; id < 30; id++) {
        double begun = now();
        queued(id);
        usleep(1000);
        if (id % 3) {
            sent(id);          /* twice: the later one counts */
            sent(id + 1000);   /* of no pair */
            usleep(2000);
            until_sent += now() - begun;
            sent(id);
        }
        usleep(1000);
        done(id);
        whole += now() - begun;
    }
    printf("%.9f %.9f", until_sent, whole);
    return 0;
}
"""


@pytest.mark.parametrize("source", ["auto", "text"])
def test_time_of_event_in_between(start_agent: StartAgent, tmp_path: Path, source: str) -> None:
    program = compiled(tmp_path / "program", PROGRAM)
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: request
    attach:
      pair:
        from: {{to: "uprobe:{program}:queued", fetch: {{id: $arg1}}}}
        through:
          sent: {{to: "uprobe:{program}:sent", fetch: {{id: $arg1}}}}
        to: {{to: "uprobe:{program}:done", fetch: {{id: $arg1}}}}
        key: id
    let: {{served: duration - sent}}
    metrics:
      - {{histogram: sent_seconds, value: sent, where: sent >= 0}}
      - {{counter: served_seconds_total, value: served, scale: 1e-9, where: sent > 1ms}}
      - {{counter: never_sent_total, where: "!(sent >= 0)"}}
""")
    until_sent, whole = map(float, subprocess.check_output([program], text=True).split())
    shown = agent.scrape_until(lambda metrics: metrics.value("kprobe_never_sent_total") == 10)
    assert shown.value("kprobe_hits_total", probe="request") == 30
    assert shown.value("kprobe_sent_seconds_count") == 20
    assert shown.value("kprobe_sent_seconds_sum") == pytest.approx(until_sent, rel=0.05)
    took = shown.value("kprobe_duration_seconds_sum", probe="request")
    assert took == pytest.approx(whole, rel=0.05)
    assert 0.02 < shown.value("kprobe_served_seconds_total") < whole - until_sent
    assert shown.total("kprobe_exporter_events_lost_total") == 0
