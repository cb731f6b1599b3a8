"""Facts of 200 processes of 5 ms: parents, paths, arguments and users are those of the load, or unknown.

Exit codes are those for which the load waits.
"""

import os
import shutil
import signal
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.records import LAYOUT_ID, TID, Batch
from kprobe_exporter.model.specs import OF_PROCESS
from kprobe_exporter.model.values import Value
from kprobe_exporter.probing.scope import Scope
from kprobe_exporter.trace.capture import collected, each_event
from kprobe_exporter.trace.facts import ProcessFacts
from kprobe_exporter.trace.loops import run_until_end
from kprobe_exporter.trace.output import Interrupt, Output
from kprobe_exporter.trace.session import trace_session
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.util.rooted_path import ProbedFiles
from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.patience import eventually, patience

RUNS = 200
UID = 12_345
PROGRAM = """
#include <unistd.h>
int main(int count, char **words) { usleep(count > 4 ? 1000000 : 5000); return 0; }
"""
CONFIG = """
probes:
  - name: ends
    attach: "tracepoint:sched:sched_process_exit"
    filter: 'comm == "lives5ms"'
    metrics:
      - {counter: ends_total, labels: [exe, ppid, parent_comm]}
      - {counter: users_total, labels: {user: {field: uid, decode: {map: {12345: mine, 0: root}}}, exe: exe}}
  - name: execs
    attach: "tracepoint:sched:sched_process_exec"
    filter: 'filename ~ "*/lives5ms"'
    metrics:
      - {counter: execs_total, labels: {exe: exe, parent: parent_comm, ppid: {field: pid, decode: ppid}}}
"""
SEEN = """
  - name: seen
    attach: "tracepoint:sched:sched_process_exec"
    metrics: [{counter: seen_total, labels: [comm]}]
"""
EXITS = """
probes:
  - name: ends
    attach: "tracepoint:sched:sched_process_exit"
    filter: 'comm ~ "x-*"'
    metrics:
      - counter: ends_total
        labels: {mode: comm, code: exit_code, signal: {field: exit_signal, decode: signal}}
      - {counter: failed_total, labels: {mode: comm, code: exit_code}, where: code != "0"}
      - {counter: exe_total, labels: [exe, exit_code]}
  - name: reaped
    attach: "tracepoint:sched:sched_process_free"
    filter: 'comm ~ "x-*" && comm != "x-executes"'  # of which the first thread's id lives on
    metrics: [{counter: reaped_total, labels: {code: {field: pid, decode: exit_code}}}]
"""
ENDS = """
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static char *path;
static pthread_t first;

static void *waits(void *_) { for (;;) pause(); }
static void *ends(void *code) { pthread_join(first, NULL); exit((long)code); }
static void *executes(void *_) { usleep(20000); execl(path, path, "x-executed", "5", NULL); return NULL; }

int main(int count, char **words)
{
    char *mode = words[1];
    long code = atoi(words[2]);
    pthread_t thread;

    path = words[0];
    first = pthread_self();
    prctl(PR_SET_NAME, mode);
    if (!strcmp(mode, "x-signal")) {
        if (code == SIGSEGV)
            *(volatile int *)0 = 1;
        kill(getpid(), code);
    } else if (!strcmp(mode, "x-threads")) {
        for (int i = 0; i < 3; i++)
            pthread_create(&thread, NULL, waits, NULL);
        usleep(20000);
    } else if (!strcmp(mode, "x-leader")) {
        pthread_create(&thread, NULL, ends, (void *)code);
        pthread_exit(NULL);
    } else if (!strcmp(mode, "x-executes")) {
        pthread_create(&thread, NULL, executes, NULL);
        for (;;)
            pause();
    }
    return code;
}
"""
KINDS_OF_ENDS = (
    # what the program does, its exit code or signal, the events as (mode, code, signal), and the wait status
    (("x-exit", 0), [("x-exit", 0, "none")], 0),
    (("x-exit", 3), [("x-exit", 3, "none")], 3),
    (("x-exit", 137), [("x-exit", 137, "none")], 137),
    (("x-signal", signal.SIGKILL), [("x-signal", 137, "SIGKILL")], -9),
    (("x-signal", signal.SIGSEGV), [("x-signal", 139, "SIGSEGV")], -11),
    (("x-signal", signal.SIGRTMIN), [("x-signal", 162, "SIGRTMIN")], -34),
    (("x-threads", 9), [("x-threads", 9, "none")] * 4, 9),
    (("x-leader", 4), [("x-leader", 0, "none"), ("x-leader", 4, "none")], 4),
    (("x-executes", 0), [("x-executes", 0, "none"), ("x-executed", 5, "none")], 5),
)
TIMES = 7


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A program that anyone may execute, of which each process lives 5 ms."""
    made = compiled(tmp_path_factory.mktemp("facts") / "lives5ms", PROGRAM)
    there = Path("/var/tmp") / f"facts-{os.getpid()}" / "lives5ms"
    there.parent.mkdir()
    shutil.copy(made, there)
    there.chmod(0o755)
    yield there
    shutil.rmtree(there.parent)


def run(program: Path) -> dict[int, tuple[list[str], int]]:
    """Run children one by one, the last for 1 s; return the arguments and the user of each, by its id."""
    load: dict[int, tuple[list[str], int]] = {}
    for number in range(RUNS):
        arguments, user = [str(program), "--number", str(number), "a b"], UID if number % 2 else 0
        if number == RUNS - 1:
            arguments.append("of 1 s")
        with subprocess.Popen(arguments, user=user) as child:
            load[child.pid] = arguments, user
    return load


def own_comm() -> str:
    return Path("/proc/thread-self/comm").read_text().strip()


@pytest.mark.needs("initial_pid_namespace")
def test_labels_of_the_agent(start_agent: StartAgent, program: Path) -> None:
    agent = start_agent(CONFIG)
    run(program)
    eventually(lambda: agent.scrape().total("kprobe_ends_total") == RUNS)
    own = {"exe": str(program), "ppid": str(os.getpid()), "parent_comm": own_comm()}
    assert agent.scrape().value("kprobe_ends_total", **own) == RUNS
    own["parent"] = own.pop("parent_comm")
    assert agent.scrape().value("kprobe_execs_total", **own) == RUNS
    # By halves or, if a process had ended before the agent read its exec, unknown; never the other half's.
    for user in ("mine", "root"):
        assert agent.scrape().total("kprobe_users_total", exe=str(program), user=user) <= RUNS / 2


def test_exe_at_an_exec_after_a_reload(start_agent: StartAgent, program: Path, tmp_path: Path) -> None:
    """The first fact is wanted beside a probe that the tracepoint calls already."""
    seen = CONFIG[: CONFIG.index("  - name: ends")] + SEEN
    agent = start_agent(seen, "--web.enable-lifecycle")
    [path] = tmp_path.glob("config*.yaml")
    path.write_text(CONFIG + SEEN)
    with urllib.request.urlopen(f"{agent.address}/-/reload", b"", timeout=patience(30)) as answer:
        assert answer.status == 200
    run(program)
    eventually(lambda: agent.scrape().total("kprobe_ends_total") == RUNS)
    metrics = agent.scrape()
    assert metrics.value("kprobe_seen_total", comm="lives5ms") == RUNS
    assert metrics.total("kprobe_execs_total", exe=str(program)) == RUNS


@pytest.mark.needs("kprobe_events")
def test_exit_codes(start_agent: StartAgent, tmp_path: Path) -> None:
    """Processes and their threads end by exit(2) and by signals, and threads by an exec."""
    agent, program = start_agent(EXITS), compiled(tmp_path / "ends", ENDS, "-pthread")
    expected: Counter[tuple[str, int, str]] = Counter()
    for _ in range(TIMES):
        for (mode, code), events, status in KINDS_OF_ENDS:
            assert subprocess.run([program, mode, str(int(code))], check=False).returncode == status
            expected.update(events)
    eventually(lambda: agent.scrape().total("kprobe_ends_total") == expected.total())
    metrics = agent.scrape()
    for (mode, number, name), times in expected.items():
        found = metrics.value("kprobe_ends_total", mode=mode, code=str(number), signal=name)
        assert found == times, (mode, number, name)
        if number:
            failed = metrics.total("kprobe_failed_total", mode=mode, code=str(number))
            assert failed == sum(times for key, times in expected.items() if key[:2] == (mode, number))
    assert metrics.total("kprobe_failed_total", code="0") == 0
    assert metrics.total("kprobe_exe_total", exe=str(program)) == expected.total()
    eventually(lambda: agent.scrape().total("kprobe_reaped_total") == expected.total() - TIMES)
    codes: Counter[int] = Counter()
    for (mode, number, _), times in expected.items():
        codes[number] += times if mode != "x-executes" else 0
    metrics = agent.scrape()
    assert {int(code): metrics.value("kprobe_reaped_total", code=str(code)) for code in codes} == codes


@pytest.mark.needs("initial_pid_namespace")
def test_facts_at_a_terminal(files: MountedTracefs, program: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG)
    probes = [each_event(probe, stacks=False) for probe in load([config], DECODERS).probes]
    executed: dict[int, Value] = {}
    shown: dict[int, dict[str, Any]] = {}
    stop = Interrupt()
    out = Output(1, stop, terminal=False)
    with trace_session(files, ProbedFiles(), Scope(), out, None, print, tgid=False) as session:

        def deliver(batch: Batch) -> None:
            for record in batch.records:
                if record[LAYOUT_ID] == capture.attached[1].layout.layout_id:
                    executed[record[TID]] = capture.facts.of(record, "exe")
                    continue
                shown[record[TID]] = {name: capture.facts.of(record, name) for name in OF_PROCESS}

        with collected(session, probes, deliver, single=True, facts=ProcessFacts(OF_PROCESS)) as capture:
            loads: list[dict[int, tuple[list[str], int]]] = []

            def children() -> None:
                loads.append(run(program))
                stop.set()

            loading = threading.Thread(target=children)
            # The probes are enabled by the first second.
            run_until_end(session, capture, lambda passed: None if loading.ident else loading.start())
            loading.join()
    [expected] = loads
    assert expected.keys() <= shown.keys()  # others are seen where the kernel cannot filter
    assert {executed[pid] for pid in expected} == {os.fsencode(program)}
    unknown: Counter[str] = Counter()
    for pid, (arguments, user) in expected.items():
        facts = shown[pid]
        assert facts["ppid"] == os.getpid()
        assert facts["exe"] == os.fsencode(program)
        assert facts["parent_comm"] == own_comm().encode()
        assert 0.004e9 < facts["age"] < 5e9
        ended = (0, 0) if files.exists("kprobe_events") else (None, None)
        assert (facts["exit_code"], facts["exit_signal"]) == ended
        assert facts["uid"] in (user, None)
        assert facts["argv"] in (" ".join(arguments).encode(), None)
        unknown.update(name for name in ("uid", "argv") if facts[name] is None)
        if len(arguments) > 4:  # it lives until its exec has been read on any machine
            assert None not in (facts["uid"], facts["argv"])
    print(f"unknown: {unknown}")
