"""A program copies machine code into memory and lists it for perf: its stacks have the listed names."""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.folded import folded, parsed
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace, TraceProcess
from tests.vm.kernels import USER_STACKS

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((noinline)) void probed(void) { __asm__ volatile(""); }
__attribute__((noinline)) void middle(void) { probed(); __asm__ volatile(""); }

// It calls by a pointer alone, so that it runs from any place.
__attribute__((noinline, section("code"))) int copied(void (*call)(void), int times) {
  for (int i = 0; i < times; i++) call();
  return times;
}
extern char __start_code[], __stop_code[];

int main(void) {
  size_t size = __stop_code - __start_code, at = (char *)copied - __start_code;
  char *memory = mmap(0, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *first = memory, *second = memory + 4096, name[64];
  memcpy(first, __start_code, size);
  memcpy(second, __start_code, size);
  __builtin___clear_cache(memory, memory + 8192);
  snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
  FILE *list = fopen(name, "w");
  fprintf(list, "%lx %zx stale\n", (long)first, size);
  fprintf(list, "%lx %zx JS:*first /app.js:1:2\n", (long)first, size);
  fprintf(list, "%lx %zx py::second:/app.py\n", (long)second, size);
  fclose(list);
  puts("listed");
  fflush(stdout);
  char line[8];
  while (fgets(line, sizeof line, stdin)) {
    int done = ((int (*)(void (*)(void), int))(first + at))(middle, 13);
    done += ((int (*)(void (*)(void), int))(second + at))(middle, 29);
    printf("%d\n", done);
    fflush(stdout);
  }
  return 0;
}
"""
FLAGS = ("-O0", "-fno-omit-frame-pointer", "-static")

TIMES = {"jit`JS:*first_/app.js:1:2": 13, "jit`py::second:/app.py": 29}

pytestmark = [pytest.mark.needs("uprobe_events"), pytest.mark.needs(USER_STACKS)]


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("jit") / "compiling", PROGRAM, *FLAGS)


@contextmanager
def running(program: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"listed\n"
            yield process
        finally:
            process.stdin.close()
            process.wait(10)
            Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)


def run(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"42\n"


def configuration(program: Path) -> str:
    return f"""
probes:
  - {{name: calls, attach: "uprobe:{program}:probed", stacks: {{user: true}}, limit: none}}
"""


def by_function(stacks: dict[tuple[str, ...], int]) -> Counter[str]:
    """Return the hits of each function that main called."""
    found = Counter[str]()
    for stack, hits in stacks.items():
        assert stack[-1] == "compiling`probed"
        found[stack[stack.index("compiling`main") + 1]] += hits
    return found


@pytest.mark.needs("initial_pid_namespace")
def test_stacks_of_agent(start_agent: StartAgent, compiling: Path) -> None:
    agent = start_agent(configuration(compiling))
    with running(compiling) as process:
        run(process)
        eventually(lambda: sum(folded(agent, "calls").values()) == sum(TIMES.values()))
        assert by_function(folded(agent, "calls")) == TIMES
    assert by_function(folded(agent, "calls")) == TIMES  # the process has ended, and its list is removed


@pytest.mark.needs("initial_pid_namespace")
def test_list_of_other_user(start_agent: StartAgent, compiling: Path) -> None:
    """Another user's file under the process's name gives no names, and the others stay."""
    agent = start_agent(configuration(compiling))
    with running(compiling) as process:
        os.chown(f"/tmp/perf-{process.pid}.map", 1234, 1234)
        run(process)
        eventually(lambda: sum(folded(agent, "calls").values()) == sum(TIMES.values()))
        assert by_function(folded(agent, "calls")) == {"[unknown]": sum(TIMES.values())}


@pytest.mark.needs("initial_pid_namespace")
def test_trace(trace: StartTrace, compiling: Path) -> None:
    output = traced(trace("--folded", f"uprobe:{compiling}:probed"), compiling)
    assert by_function(parsed(output)) == TIMES


@pytest.mark.needs("initial_pid_namespace")
def test_trace_of_objects(trace: StartTrace, compiling: Path) -> None:
    objects = traced(trace("-u", "--json", f"uprobe:{compiling}:probed"), compiling)
    stacks = Counter(tuple(reversed(json.loads(line)["stack"])) for line in objects.splitlines())
    names = {name.replace("_", " "): times for name, times in TIMES.items()}
    assert by_function(stacks) == names


def traced(tracing: TraceProcess, program: Path) -> str:
    """Return the output of a trace during which the program runs once."""
    with running(program) as process:
        enabled = tracing.instance / f"events/{tracing.instance.name}"
        eventually(
            lambda: any((one / "enable").read_text().startswith("1") for one in enabled.glob("*/")), 30
        )
        run(process)
        tracing.signal(signal.SIGINT)
        assert tracing.wait() == 0, tracing.errors
    return tracing.output.decode()
