"""`stacks: {user: true}`: a program's functions below the kernel's, with the counts of a known load."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.folded import folded, parsed
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace
from tests.vm.kernels import USER_STACKS

TIMES = {"first": 13, "second": 29, "third": 53}
"""How often each function makes the system call, so that each sum of them is another number."""

PROGRAM = r"""
#include <stdio.h>
#include <unistd.h>

static __attribute__((noinline)) void call(void) {
#if defined(__x86_64__)
  long number = 110;
  __asm__ volatile("syscall" : "+a"(number) : : "rcx", "r11", "memory");
#else
  register long number __asm__("x8") = 173;
  register long result __asm__("x0");
  __asm__ volatile("svc 0" : "=r"(result) : "r"(number) : "x30", "memory");  // x30: it saves a frame
#endif
}

__attribute__((noinline)) int work(int times) {
  for (int i = 0; i < times; i++) call();
  return times;
}
__attribute__((noinline)) int first(void) { return work(13) + 1; }
__attribute__((noinline)) int second(void) { return work(29) + 1; }
__attribute__((noinline)) int third(void) { return work(53) + 1; }

int main(void) {
  char line[8];
  while (fgets(line, sizeof line, stdin)) {
    int sum = first() + second() + third();
    printf("%d\n", sum);
    fflush(stdout);
  }
  return 0;
}
"""
FLAGS = ("-O0", "-fno-omit-frame-pointer", "-static")

pytestmark = [pytest.mark.needs("kprobe_events"), pytest.mark.needs(USER_STACKS)]


@pytest.fixture
def threepaths(tmp_path: Path) -> Path:
    return compiled(tmp_path / "threepaths", PROGRAM, *FLAGS)


@contextmanager
def running(path: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that makes the program call each of its functions once.

    It runs after an agent was started, which would hold its pipes open.
    """
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        write, read = process.stdin, process.stdout

        def run() -> None:
            write.write(b"go\n")
            write.flush()
            assert int(read.readline()) == sum(TIMES.values()) + 3

        with closing(write):
            yield run
        process.wait(10)


def configuration(attach: str, keys: str = "", source: str = "auto") -> str:
    return f"""
global: {{source: {source}}}
probes:
  - name: calls
    attach: {attach}
    filter: comm == "threepaths"
    stacks: {{user: true}}
    limit: none
    {keys}
"""


def by_function(stacks: dict[tuple[str, ...], int]) -> dict[str, int]:
    """Return the sums of the stacks that go through each function, and check that main called it."""
    found = dict.fromkeys(TIMES, 0)
    for stack, number in stacks.items():
        for name in TIMES:
            if f"threepaths`{name}" in stack:
                at = stack.index(f"threepaths`{name}")
                assert stack[at - 1] == "threepaths`main", stack
                assert stack[at + 1] == "threepaths`work", stack
                found[name] += number
    return found


@pytest.mark.parametrize("source", ["binary", "text"])
def test_a_function_of_the_kernel(start_agent: StartAgent, threepaths: Path, source: str) -> None:
    agent = start_agent(configuration("kprobe:sys_getppid", source=source))
    with running(threepaths) as run:
        run()
        eventually(lambda: by_function(folded(agent, "calls")) == TIMES, 20)
        stacks = folded(agent, "calls")
        assert sum(stacks.values()) == sum(TIMES.values())
        for stack in stacks:
            assert stack[stack.index("threepaths`work") + 1] == "threepaths`call"
            assert "getppid" in stack[-1]
            assert not any("kprobe" in frame for frame in stack)
    # The program has ended, and its file is known.
    assert by_function(folded(agent, "calls")) == TIMES
    svg = agent.get("/stacks/calls.svg")
    assert "calls: stacks by hits" in svg
    assert "lost" not in re.sub("(?s)<style>.*?</style>|<script>.*?</script>", "", svg)
    metrics = agent.scrape()
    assert metrics.value("kprobe_exporter_events_lost_total", reason="unparsed") == 0


def test_calls_by_their_time(start_agent: StartAgent, threepaths: Path) -> None:
    agent = start_agent(
        configuration("call:sys_getppid").replace("user: true", "user: true, weigh: duration")
    )
    with running(threepaths) as run:
        run()
        eventually(lambda: all(by_function(folded(agent, "calls")).values()), 20)
        eventually(lambda: agent.scrape().value("kprobe_duration_seconds_count", probe="calls") == 95)
        total = agent.scrape().value("kprobe_duration_seconds_sum", probe="calls")
        assert sum(folded(agent, "calls").values()) == pytest.approx(1e9 * total, rel=1e-6)


@pytest.mark.needs("uprobe_events")
def test_a_place_in_a_program(start_agent: StartAgent, threepaths: Path) -> None:
    """At a function's entry its caller has not been saved yet: the stack goes on with the caller's caller."""
    agent = start_agent(configuration(f"uprobe:{threepaths}:call"))
    with running(threepaths) as run:
        run()
        eventually(lambda: sum(folded(agent, "calls").values()) == sum(TIMES.values()), 20)
        stacks = folded(agent, "calls")
    assert {stack[-1] for stack in stacks} == {"threepaths`call"}
    through = {
        name: sum(number for stack, number in stacks.items() if f"threepaths`{name}" in stack)
        for name in TIMES
    }
    assert through == TIMES


def test_others_events_have_no_stack(start_agent: StartAgent, threepaths: Path) -> None:
    """A probe beside it counts as ever, and a reload to a configuration without it ends the recording."""
    beside = """
  - name: beside
    attach: kprobe:sys_getppid
    filter: comm == "threepaths"
    limit: none
    metrics: [{counter: beside_total, labels: [comm]}]
"""
    agent = start_agent(configuration("kprobe:sys_getppid") + beside)
    option = Path("/sys/kernel/tracing/instances/kprobe_exporter/options/userstacktrace")
    assert option.read_text() == "1\n"
    with running(threepaths) as run:
        run()
        eventually(lambda: agent.scrape().value("kprobe_beside_total", comm="threepaths") == 95, 20)
        eventually(lambda: by_function(folded(agent, "calls")) == TIMES, 20)
        config = next(threepaths.parent.glob("config*.yaml"))
        config.write_text(f"probes:{beside}")
        agent.signal(signal.SIGHUP)
        eventually(lambda: option.read_text() == "0\n", 20)
        eventually(lambda: "calls" not in agent.get("/"), 20)
        run()
        eventually(lambda: agent.scrape().value("kprobe_beside_total", comm="threepaths") == 190, 20)
        assert agent.scrape().value("kprobe_exporter_events_lost_total", reason="unparsed") == 0


def test_a_trace(trace: StartTrace, threepaths: Path) -> None:
    tracing = trace("-u", "--folded", "kprobe:sys_getppid", 'comm == "threepaths"')
    enabled = tracing.instance / f"events/{tracing.instance.name}"
    eventually(lambda: any((one / "enable").read_text().startswith("1") for one in enabled.glob("*/")), 30)
    with running(threepaths) as run:
        run()
        eventually(lambda: (tracing.instance / "options/userstacktrace").read_text() == "1\n")
        tracing.signal(signal.SIGINT)
        assert tracing.wait() == 0, tracing.errors
    assert by_function(parsed(tracing.output.decode())) == TIMES
