"""23 calls of a C++ function are 23 by its written name, and so it stands in the program's stacks."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.patience import eventually

pytest.importorskip("pycxxfilt")
pytestmark = pytest.mark.needs("uprobe_events")

TIMES = 23
SOURCE = """
#include <cstdio>
namespace app {
struct Foo {
    int x;
    __attribute__((noinline)) int bar(int n) { asm volatile(""); return x + n; }
    __attribute__((noinline)) int bar(const char *s) { asm volatile(""); return s[x]; }
};
}
int main() {
    app::Foo foo{1};
    int sum = 0;
    for (int turn = 0; turn < 23; turn++) sum += foo.bar(turn) + foo.bar("ab");
    return sum == 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    made = tmp_path_factory.mktemp("cpp") / "program"
    flags = ["-O1", "-fno-omit-frame-pointer", "-x", "c++", "-"]
    subprocess.run([compiler, *flags, "-o", made], input=SOURCE.encode(), check=True)
    return made


def test_probe_by_written_name(start_agent: StartAgent, program: Path) -> None:
    place = json.dumps(f"uprobe:{program}:app::Foo::bar(int)")
    call = json.dumps(f"ucall:{program}:app::Foo::bar(char const*)")
    agent = start_agent(
        "probes:\n"
        f"  - {{name: bar, attach: {place}, fetch: {{n: '$arg2:s32'}},"
        " metrics: [{counter: bars_total, labels: [n]}]}\n"
        f"  - {{name: text, attach: {call}, metrics: [{{counter: texts_total, labels: [caller]}}]}}\n"
    )
    subprocess.run([program], check=True)
    eventually(lambda: agent.scrape().total("kprobe_texts_total") == TIMES)
    eventually(lambda: agent.scrape().total("kprobe_bars_total") == TIMES)
    assert {one["n"] for one in agent.scrape().labels("kprobe_bars_total")} == set(map(str, range(TIMES)))
    infos = {one["probe"]: one["symbol"] for one in agent.scrape().labels("kprobe_info") if "symbol" in one}
    assert infos.get("bar", "app::Foo::bar(int)") == "app::Foo::bar(int)"
