"""Calls whose thread exits, forks or executes a program are told as lost, and have no wrong duration."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.compiling import compiled
from tests.support.forked_child import in_a_child
from tests.support.joined_calls import lost
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("uprobe_events")

TIMES = 23
EVENTS, HITS = "kprobe_exporter_events_total", "kprobe_hits_total"

PROGRAM = """
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define OWN __attribute__((noinline, noclone))

static char **program;
OWN int leaves(int how) {
    if (how == 1) pthread_exit(0);
    if (how == 2) execv(program[0], program);
    if (how == 4) { printf("in\\n"); fflush(stdout); getchar(); }
    if (how == 3) { if (fork() == 0) return 1; wait(0); }
    return 0;
}
OWN int outer(int how) { int in_child = leaves(how); __asm__(""); return in_child; }
static void handles(int number) { (void)number; }
static void *calls(void *how) { outer((long)how); return 0; }
static void *replaces(void *unused) {
    printf("%ld\\n", syscall(SYS_gettid));
    fflush(stdout);
    usleep(200000);
    execv(program[0], program);
    return 0;
}

int main(int count, char **words) {
    pthread_t thread;
    program = words + 3;
    int times = atoi(words[2]);
    if (!strcmp(words[1], "hold")) {
        outer(4);
        printf("out\\n");
        fflush(stdout);
        pause();
    }
    for (int i = 0; i < times; i++) {
        if (!strcmp(words[1], "exit")) {
            pthread_create(&thread, 0, calls, (void *)1);
            pthread_join(thread, 0);
        }
        if (!strcmp(words[1], "signal")) {
            signal(SIGUSR1, handles);
            raise(SIGUSR1);
            pthread_create(&thread, 0, calls, (void *)1);
            pthread_join(thread, 0);
            return 7;
        }
        if (!strcmp(words[1], "many")) { outer(0); continue; }
        if (!strcmp(words[1], "fork") && outer(3)) return 0;
        if (!strcmp(words[1], "exec") && fork() == 0) return outer(2);
        wait(0);
    }
    if (!strcmp(words[1], "thread")) {
        pthread_create(&thread, 0, replaces, 0);
        pause();
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("thread_ends") / "program", PROGRAM, "-pthread")


@pytest.fixture
def calls(start_agent: StartAgent, program: Path) -> AgentProcess:
    return start_agent(f"""
probes:
  - {{name: outer, attach: "ucall:{program}:outer"}}
  - {{name: leaves, attach: "ucall:{program}:leaves"}}
""")


@pytest.mark.parametrize("how", ["exit", "exec"])
def test_calls_of_a_function_that_does_not_return(calls: AgentProcess, program: Path, how: str) -> None:
    subprocess.run([program, how, str(TIMES), "/bin/true"], check=True)
    eventually(lambda: lost(calls) == {"unpaired": 2 * TIMES})
    metrics = calls.scrape()
    for probe in ("outer", "leaves"):
        assert metrics.value(HITS, probe=probe) == TIMES
        assert metrics.value(EVENTS, probe=probe) == 0


def test_lost_events_about_threads_are_no_loss_of_probes(start_agent: StartAgent, program: Path) -> None:
    """The buffers are full of starts, execs and exits while the agent stands still; no probe has fired."""
    agent = start_agent(f"""
global: {{buffer_size: 16KiB, limit: none}}
probes:
  - {{name: outer, attach: "ucall:{program}:outer"}}
""")
    agent.signal(signal.SIGSTOP)
    for _ in range(300):
        subprocess.run(["/bin/true"], check=True)
    agent.signal(signal.SIGCONT)
    assert agent.scrape().value(HITS, probe="outer") == 0
    assert lost(agent) == {}
    subprocess.run([program, "fork", str(TIMES)], check=True)
    eventually(lambda: agent.scrape().value(EVENTS, probe="outer") == TIMES)
    assert lost(agent) == {}


def test_call_whose_return_was_overwritten_is_told_at_once(
    start_agent: StartAgent, program: Path, on_cpu: Callable[[int], None]
) -> None:
    """Its thread stands still then: no later event of it tells the agent that the call has ended."""
    agent = start_agent(f"""
global: {{buffer_size: 16KiB, limit: none}}
probes: [{{name: outer, attach: "ucall:{program}:outer"}}]
""")
    on_cpu(0)
    words = [str(program), "hold", "1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        try:
            call_and_overwrite(agent, program, held)
            eventually(lambda: unaccounted(agent) == 0, 10)
        finally:
            held.kill()
    assert lost(agent)["overrun"] > 0


def call_and_overwrite(agent: AgentProcess, program: Path, held: subprocess.Popen[str]) -> None:
    """Let a call's entry be read, and its return be overwritten."""
    assert held.stdin
    assert held.stdout
    assert held.stdout.readline() == "in\n"
    eventually(lambda: agent.scrape().value(HITS, probe="outer") == 1)
    agent.signal(signal.SIGSTOP)
    subprocess.run([program, "many", "200"], check=True)  # the page that is being read is not overwritten
    held.stdin.write("\n")
    held.stdin.flush()
    assert held.stdout.readline() == "out\n"
    subprocess.run([program, "many", "2000"], check=True)
    agent.signal(signal.SIGCONT)


def unaccounted(agent: AgentProcess) -> float:
    """The halves of the 2201 calls that are neither in an event nor told as lost."""
    metrics, gone = agent.scrape(), lost(agent)
    assert gone.keys() <= {"overrun", "unpaired"}
    return 2 * (2201 - metrics.value(EVENTS, probe="outer")) - sum(gone.values())


def test_calls_that_the_filter_excludes_are_no_loss(start_agent: StartAgent, program: Path) -> None:
    agent = start_agent(f"""
probes:
  - {{name: excluded, attach: "ucall:{program}:outer", fetch: {{how: "$arg1:s32"}}, filter: how == 3}}
  - {{name: leaves, attach: "ucall:{program}:leaves", fetch: {{how: "$arg1:s32"}}, filter: how == 1}}
""")
    subprocess.run([program, "exit", str(TIMES), "/bin/true"], check=True)
    eventually(lambda: agent.scrape().value(HITS, probe="excluded") == TIMES)
    eventually(lambda: lost(agent) == {"unpaired": TIMES})  # those of leaves()


def test_a_fork_within_a_call(calls: AgentProcess, program: Path) -> None:
    """The child returns from the calls that its parent made: these are no calls, and none is lost."""
    subprocess.run([program, "fork", str(TIMES)], check=True)
    eventually(lambda: calls.scrape().value(EVENTS, probe="outer") >= TIMES)
    metrics = calls.scrape()
    for probe in ("outer", "leaves"):
        assert metrics.value(HITS, probe=probe) == TIMES
        assert metrics.value(EVENTS, probe=probe) == TIMES
    assert lost(calls) == {}


@pytest.mark.needs("events/syscalls")
@pytest.mark.parametrize("source", ["auto", "text"])
def test_system_call_without_return_has_hits_alone(
    start_agent: StartAgent, program: Path, source: str
) -> None:
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - {{name: exit_group, attach: "syscall:exit_group"}}
  - name: codes
    attach: "syscall:exit_group"
    fetch: {{code: error_code}}
    metrics: [{{counter: codes_total, labels: [code], where: code == 7}}]
  - {{name: none, attach: "syscall:exit_group", fetch: {{code: error_code}}, filter: code == 99}}
  - {{name: rt_sigreturn, attach: "syscall:rt_sigreturn"}}
  - {{name: exit, attach: "syscall:exit"}}
""")
    for _ in range(TIMES):
        assert subprocess.run([program, "signal", "1"], check=False).returncode == 7

    def told() -> bool:
        metrics = agent.scrape()
        assert lost(agent) == {}
        return metrics.value("kprobe_codes_total", code="7") == TIMES and all(
            metrics.value(HITS, probe=name) >= TIMES for name in ("exit_group", "rt_sigreturn", "exit")
        )

    eventually(told)
    assert "only its entry is traced: it never returns" in agent.get("/probe/exit")


@pytest.mark.needs("kprobe_events")
def test_calls_of_functions_that_never_return(start_agent: StartAgent, program: Path) -> None:
    """They are counted at their entry, and none is lost."""
    agent = start_agent("""
probes:
  - {name: calls, attach: "call:do_exit"}
  - name: codes
    attach: "call:do_exit"
    fetch: {code: "$arg1:u64"}
    metrics: [{counter: codes_total, labels: [code], where: code == 1792}]
  - {name: exits, attach: "call:sys_exit_group"}
  - {name: returns, attach: "kretprobe:do_exit", optional: true}
""")
    for _ in range(TIMES):
        assert subprocess.run([program, "signal", "1"], check=False).returncode == 7

    def told() -> bool:
        metrics = agent.scrape()
        assert lost(agent) == {}
        return (
            metrics.value("kprobe_codes_total", code=str(7 << 8)) >= TIMES
            and metrics.value(HITS, probe="exits") >= TIMES
            and metrics.value(HITS, probe="calls") >= 2 * TIMES  # each process has a second thread
        )

    eventually(told)
    assert agent.scrape().value("kprobe_exporter_probe_absent", probe="returns") == 1
    assert "only its entry is traced: it never returns" in agent.get("/probe/calls")


@pytest.mark.needs("kprobe_events", "initial_pid_namespace")
def test_an_exec_by_another_thread_than_the_leader(start_agent: StartAgent, program: Path) -> None:
    """The thread gets the leader's id. A process that gets its former id ends none of its calls."""
    agent = start_agent("""
probes:
  - {name: executes, attach: "syscall:execve"}
  - {name: execve, attach: "call:sys_execve"}
  - name: runs
    attach:
      pair:
        from: tracepoint:syscalls:sys_enter_execve
        to: tracepoint:sched:sched_process_exit
        key: [tid]
    metrics: [{histogram: run_seconds, value: duration, scale: 1e-9, buckets: [0.001, 1, 3600]}]
""")
    command = [str(program), "thread", "0", "/bin/true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        tid = int(started.stdout.readline())
        assert tid != started.pid
    assert started.returncode == 0
    eventually(lambda: agent.scrape().value(EVENTS, probe="runs") == 2)
    time.sleep(1.5)  # longer than the bucket of 1 s: a process that ends the call of the former one is seen
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(tid - 1))
    assert in_a_child(lambda: None) == tid, "another process took the id"
    metrics = agent.scrape()
    for probe in ("executes", "execve", "runs"):
        assert metrics.value(HITS, probe=probe) == 2
        assert metrics.value(EVENTS, probe=probe) == 2
    assert metrics.value("kprobe_run_seconds_bucket", le="1.0") == 2
    assert lost(agent) == {}
