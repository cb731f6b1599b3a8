"""The callers of a program's function are those that the program has, also in a library."""

import subprocess
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("uprobe_events", "host_proc")

LIBRARY = '__attribute__((noinline)) int thrice(int n) { __asm__(""); return 3 * n; }'
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
int thrice(int n);
__attribute__((noinline)) int twice(int n) { __asm__(""); return 2 * n; }
__attribute__((noinline)) int often(int n) { return twice(n) + thrice(n) + 1; }
__attribute__((noinline)) int seldom(int n) { return twice(n) + thrice(n) + 2; }
/* For each line that it reads, it calls as often as that says, and answers with a line. */
int main(int count, char **words) {
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        for (int times = atoi(line), n = 0; n < times; n++) {
            if (often(n) < 0) return 1;
            if (n % 10 == 0 && seldom(n) < 0) return 1;
        }
        puts("called");
        fflush(stdout);
    }
    return count < 0;
}
"""

CONFIG = """
global: {{source: {source}}}
probes:
  - name: entry
    attach: "uprobe:{program}:twice"
    metrics:
      - {{counter: entered_total, labels: [caller]}}
      - {{counter: numbers_total, value: n, where: 'by == "program`seldom"', labels: {{by: caller}}}}
    fetch: {{n: "$arg1:s32"}}
  - name: back
    attach: "uretprobe:{library}:thrice"
    metrics: [{{counter: returned_total, labels: {{caller: caller, return: return}}, where: return < 10}}]
  - name: whole
    attach: "ucall:{library}:thrice"
    metrics: [{{histogram: took_seconds, value: duration, labels: [caller], buckets: [1]}}]
"""

CALLS = {"program`often": 1000, "program`seldom": 100}
NUMBERS = sum(range(0, 1000, 10))
RETURNED = 4 + 1  # `often` has 0, 3, 6 and 9 back, `seldom` only 0
COUNTED = {
    "entered_total": sum(CALLS.values()),
    "numbers_total": NUMBERS,
    "returned_total": RETURNED,
    "took_seconds_count": sum(CALLS.values()),
}
"""The sum of each metric over its labels. The callers of each are named on their own."""


@pytest.mark.parametrize("source", ["auto", "text"])
def test_the_functions_of_a_program(start_agent: StartAgent, tmp_path: Path, source: str) -> None:
    library = compiled(tmp_path / "libthrice.so", LIBRARY, "-shared", "-fPIC")
    links = ("-Wl,--no-as-needed", f"-L{tmp_path}", "-lthrice", f"-Wl,-rpath,{tmp_path}")
    program = compiled(tmp_path / "program", PROGRAM, *links)
    agent = start_agent(CONFIG.format(source=source, program=program, library=library))
    pipe = subprocess.PIPE
    with subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("1000\n")
        assert process.stdout.readline() == "called\n"

        def counted() -> bool:
            found = agent.scrape()
            return {name: found.total(f"kprobe_{name}") for name in COUNTED} == COUNTED

        eventually(counted, 10)
        metrics = agent.scrape()
        process.communicate()
    for name in ("entered_total", "took_seconds_count"):
        assert {caller: metrics.total(f"kprobe_{name}", caller=caller) for caller in CALLS} == CALLS
    assert metrics.value("kprobe_numbers_total", by="program`seldom") == NUMBERS
    by = {(one["caller"], one["return"]) for one in metrics.labels("kprobe_returned_total")}
    expected = {("program`often", str(value)) for value in (0, 3, 6, 9)} | {("program`seldom", "0")}
    assert by == expected
