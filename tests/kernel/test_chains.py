"""Pairs with events in between, and of an event with the next: the times and values are the program's own."""

import itertools
import subprocess
import time
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
    /* Between the two clocks' readings the probe fires, which takes long on an emulated machine. */
    double sent_least = 0, sent_most = 0, least = 0, most = 0;
    for (long id = 0; id < 30; id++) {
        double begun = now();
        queued(id);
        double after = now();
        usleep(1000);
        if (id % 3) {
            sent(id);          /* twice: the later one counts */
            sent(id + 1000);   /* of no pair */
            usleep(2000);
            sent_least += now() - after;
            sent(id);
            sent_most += now() - begun;
        }
        usleep(1000);
        least += now() - after;
        done(id);
        most += now() - begun;
    }
    printf("%.9f %.9f %.9f %.9f", sent_least, sent_most, least, most);
    return 0;
}
"""


@pytest.mark.parametrize("source", ["auto", "text"])
def test_time_of_event_in_between(start_agent: StartAgent, tmp_path: Path, source: str) -> None:
    program = compiled(tmp_path / "program", PROGRAM)
    agent = start_agent(f"""
global: {{source: {source}, tracefs_instance: chains}}
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
    printed = subprocess.check_output([program], text=True)
    sent_least, sent_most, least, most = map(float, printed.split())
    shown = agent.scrape_until(lambda metrics: metrics.value("kprobe_never_sent_total") == 10)
    assert shown.value("kprobe_hits_total", probe="request") == 30
    assert shown.value("kprobe_sent_seconds_count") == 20
    assert sent_least <= shown.value("kprobe_sent_seconds_sum") <= sent_most
    assert least <= shown.value("kprobe_duration_seconds_sum", probe="request") <= most
    assert 0.02 < shown.value("kprobe_served_seconds_total") < most - sent_least
    assert shown.total("kprobe_exporter_events_lost_total") == 0


WALKER = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) void visit(long device, long sector) { __asm__("" :: "r"(device), "r"(sector)); }
int main(void) {
    for (long turn = 0; turn < 50; turn++) {
        visit(1, 8 * turn);                  /* in order */
        visit(2, turn % 5 ? 8 * turn : 0);   /* a seek before and after each fifth */
        if (turn % 10 == 0) usleep(2000);
    }
    return 0;
}
"""


@pytest.mark.parametrize("source", ["auto", "text"])
def test_event_and_the_one_before_it(start_agent: StartAgent, tmp_path: Path, source: str) -> None:
    """49 of 50 events of a device have one before them. One in ten comes after a pause."""
    program = compiled(tmp_path / "walker", WALKER)
    visit = f'{{to: "uprobe:{program}:visit", fetch: {{device: $arg1, sector: $arg2}}}}'
    agent = start_agent(f"""
global: {{source: {source}, tracefs_instance: chains}}
probes:
  - name: visit
    attach: {{pair: {{from: {visit}, to: {visit}, key: device}}}}
    let: {{distance: sector - previous_sector}}
    metrics:
      - {{counter: in_order_total, where: distance == 8, labels: [device]}}
      - {{counter: seeks_total, where: distance != 8, labels: [device]}}
      - {{counter: paused_total, where: duration >= 2ms, labels: [device]}}
""")
    subprocess.run([program], check=True)
    shown = agent.scrape_until(lambda metrics: metrics.total("kprobe_in_order_total") == 49 + 31)
    places = [8 * turn if turn % 5 else 0 for turn in range(50)]
    in_order = sum(after - before == 8 for before, after in itertools.pairwise(places))
    for device, orderly in (("1", 49), ("2", in_order)):
        assert shown.value("kprobe_in_order_total", device=device) == orderly
        assert shown.value("kprobe_seeks_total", device=device) == 49 - orderly
        assert shown.value("kprobe_paused_total", device=device) >= 5
    assert shown.value("kprobe_hits_total", probe="visit") == 100
    assert shown.value("kprobe_exporter_events_total", probe="visit") == 98
    assert shown.total("kprobe_exporter_events_lost_total") == 0


LEAKING = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) void *take(long size) { void *at = malloc(size); __asm__(""); return at; }
__attribute__((noinline)) void taken(void *at, long size) { __asm__("" :: "r"(at), "r"(size)); }
__attribute__((noinline)) void give(void *at) { __asm__("" :: "r"(at)); free(at); }
__attribute__((noinline)) void *kept(void) { void *at = take(1024); taken(at, 1024); return at; }
__attribute__((noinline)) void *used(void) { void *at = take(100); taken(at, 100); return at; }
int main(void) {
    for (int turn = 0; turn < 200; turn++) {
        void *at = used();
        if (turn < 37) kept();
        give(at);
    }
    char byte;
    write(1, "x", 1);
    read(0, &byte, 1);
    give(used());
    return 0;
}
"""


@pytest.mark.needs("initial_pid_namespace")
@pytest.mark.parametrize("source", ["auto", "text"])
def test_leaks_are_outstanding(start_agent: StartAgent, tmp_path: Path, source: str) -> None:
    """37 blocks of 1 KiB are never freed. They count a second after they were taken, and not before."""
    program = compiled(tmp_path / "leaking", LEAKING)
    given = f'{{to: "uprobe:{program}:give", fetch: {{at: $arg1}}}}'
    agent = start_agent(f"""
global: {{source: {source}, tracefs_instance: chains}}
probes:
  - name: block
    attach:
      pair: {{from: {{to: "uretprobe:{program}:take", fetch: {{at: $retval}}}}, to: {given}, key: at}}
    outstanding: {{older_than: 1s}}
    stacks: {{user: true}}
  - name: bytes
    attach: {{pair: {{from: {{to: "uprobe:{program}:taken"}}, to: {given}, key: at}}}}
    fetch: {{at: $arg1, size: "$arg2:u64"}}
    outstanding: {{older_than: 1s, weigh: size}}
""")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.read(1)
        taken = time.monotonic()
        if source == "text":  # it knows no time but that of the last event
            time.sleep(1.5)
            running.communicate(b"x")
        shown = agent.scrape_until(lambda metrics: metrics.value("kprobe_outstanding", probe="block") == 37)
        assert time.monotonic() > taken + 0.9
        shown = agent.scrape_until(lambda metrics: metrics.value("kprobe_outstanding", probe="bytes") == 37)
        assert shown.value("kprobe_outstanding_weight", probe="bytes") == 37 * 1024
        assert ("kprobe_outstanding_weight", frozenset({("probe", "block")})) not in shown
        if source == "text":
            return
        found = agent.get("/stacks/block.outstanding")
        assert [(line.split()[0].count("kept"), line.split()[1]) for line in found.splitlines()] == [
            (1, "37")
        ]
        assert "kept" in agent.get("/stacks/block.outstanding.svg")
        running.communicate(b"x")


RELAY = """
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) void asked(const char **words, long turn) { __asm__("" :: "r"(words), "r"(turn)); }
__attribute__((noinline)) void answered(long turn) { __asm__("" :: "r"(turn)); }
static void *answer(void *turn) { answered((long)turn); return NULL; }
int main(void) {
    for (long turn = 0; turn < 30; turn++) {
        const char *words[] = {"turn", turn % 3 ? "some" : "third"};
        pthread_t thread;
        asked(words, turn);
        if (pthread_create(&thread, NULL, answer, (void *)turn)) return 1;
        pthread_join(thread, NULL);
    }
    return 0;
}
"""


@pytest.mark.needs("initial_pid_namespace")
@pytest.mark.parametrize("source", ["auto", "text"])
def test_pair_of_two_threads_of_a_process(start_agent: StartAgent, tmp_path: Path, source: str) -> None:
    """The kernel's records hold neither the process, by which the events are paired, nor an array's text."""
    program = compiled(tmp_path / "relay", RELAY, "-pthread")
    fetch = '{words: "+0($arg1):string[2]", turn: $arg2}'
    agent = start_agent(f"""
global: {{source: {source}, tracefs_instance: chains}}
probes:
  - name: relay
    attach:
      pair:
        from: {{to: "uprobe:{program}:asked", fetch: {fetch}, filter: turn >= 3}}
        to: {{to: "uprobe:{program}:answered"}}
        key: pid
    metrics:
      - {{counter: answers_total, labels: [words, pid]}}
      - {{counter: late_total, where: pid > 0 && turn >= 10}}
""")
    with subprocess.Popen([program]) as process:
        assert process.wait() == 0
    shown = agent.scrape_until(lambda metrics: metrics.total("kprobe_answers_total") == 27)
    for word, number in (("third", 9), ("some", 18)):
        words = f'{{"turn","{word}"}}'
        assert shown.value("kprobe_answers_total", words=words, pid=str(process.pid)) == number
    assert shown.value("kprobe_late_total") == 20
    assert shown.value("kprobe_hits_total", probe="relay") == 30
    assert shown.total("kprobe_exporter_events_lost_total") == 0
