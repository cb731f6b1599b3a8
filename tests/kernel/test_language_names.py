"""Functions in C++, Rust and Go are counted by their written names, which `list` and stacks have, too."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.folded import folded
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace
from tests.vm.kernels import USER_STACKS

pytest.importorskip("pycxxfilt")
pytestmark = pytest.mark.needs("uprobe_events")

TIMES = 23
ESCAPED = "_$LT$app..Vec$LT$T$GT$$u20$as$u20$app..Debug$GT$"
SOURCE = """
#include <cstdio>
namespace app {
struct Foo {
    int x;
    __attribute__((noinline)) int bar(int n) { asm volatile(""); return x + n; }
    __attribute__((noinline)) int bar(const char *s) { asm volatile(""); return s[x]; }
};
template <class T> struct Box {
    T value;
    __attribute__((noinline)) T get(int n) { asm volatile(""); return value + n; }
};
}
int main() {
    app::Foo foo{1};
    app::Box<int> numbers{1};
    app::Box<long> wide{2};
    int sum = 0;
    for (int turn = 0; turn < 23; turn++) sum += foo.bar(turn) + foo.bar("ab");
    for (int turn = 0; turn < 23 * 2; turn++) sum += numbers.get(turn);
    for (int turn = 0; turn < 23 * 3; turn++) sum += wide.get(turn);
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
    targets = {one["probe"]: one["target"] for one in agent.scrape().labels("kprobe_info")}
    assert targets["bar"] == f"uprobe:{program}:app::Foo::bar(int)"


def test_instances_of_a_template(start_agent: StartAgent, program: Path) -> None:
    """A probe for each, entries and calls alike."""
    entry, call = (json.dumps(f"{kind}:{program}:app::Box<*>::get") for kind in ("uprobe", "ucall"))
    agent = start_agent(
        "probes:\n"
        f"  - {{name: entry, attach: {entry}, metrics: [{{counter: entries_total}}]}}\n"
        f"  - {{name: call, attach: {call}, metrics: [{{counter: calls_total}}]}}\n"
    )
    subprocess.run([program], check=True)
    eventually(lambda: agent.scrape().total("kprobe_entries_total") == TIMES * 5)
    eventually(lambda: agent.scrape().total("kprobe_calls_total") == TIMES * 5)
    targets = {one["target"] for one in agent.scrape().labels("kprobe_info")}
    names = ("app::Box<int>::get", "app::Box<long>::get")
    assert targets == {f"{kind}:{program}:{name}" for kind in ("uprobe", "ucall") for name in names}


def test_instances_listed_and_checked(program: Path, tmp_path: Path) -> None:
    """A template without an instance is a row that says so, next to the others."""
    config, pattern = tmp_path / "c.yaml", f"uprobe:{program}:app::Box<*>::get"
    other = json.dumps(pattern.replace("get", "put"))
    config.write_text(
        f"probes: [{{name: get, attach: {json.dumps(pattern)}}}, {{name: put, attach: {other}}}]"
    )
    config.chmod(0o600)
    command = [sys.executable, "-m", "kprobe_exporter"]
    listed = subprocess.run([*command, "list", pattern], check=True, capture_output=True, text=True)
    names = ["app::Box<int>::get", "app::Box<long>::get"]
    assert listed.stdout.splitlines() == [f"uprobe:{program}:{name}(int)" for name in names]
    checked = subprocess.run(
        [*command, "check", "--live", "--json", str(config)], check=False, capture_output=True, text=True
    )
    rows = {row["target"]: row for row in json.loads(checked.stdout)}
    assert [rows[f"uprobe:{program}:{name}"]["state"] for name in names] == ["up", "up"]
    assert "matches no function of C++ or Rust" in rows[json.loads(other)]["why"][0]


@pytest.mark.needs("initial_pid_namespace")
def test_instances_at_a_terminal(trace: StartTrace, program: Path) -> None:
    running = trace("--json", f"uprobe:{program}:app::Box<*>::get")
    running.wait_until_enabled()
    with subprocess.Popen([program]) as child:
        pass
    running.wait_for(b"Box<long>", 20)
    assert running.end() == 0
    found = [json.loads(line) for line in running.output.splitlines()]
    counts = Counter(one["target"].rpartition("::Box")[2] for one in found if one["tid"] == child.pid)
    assert counts == {"<int>::get": TIMES * 2, "<long>::get": TIMES * 3}


NAMES = {
    "v0": ("_RNvNtC3app3net4pull", "app::net::pull"),
    "legacy": (f"_ZN{len(ESCAPED)}{ESCAPED}3fmt17h0123456789abcdefE", "<app::Vec<T> as app::Debug>::fmt"),
    "method": ("net/http.(*Server).Serve", "net/http.(*Server).Serve"),
    "generic": ("main.Map[...]", "main.Map[...]"),
    "closure": ("main.(*T).M.func1", "main.(*T).M.func1"),
}
"""Symbols as the compilers of Rust and Go make them, of C functions, and the names that people write."""


def calls_of(name: str) -> int:
    return TIMES + list(NAMES).index(name)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose functions have such symbols. Each calls a function that all share, and that a leaf."""
    declared = "".join(f'int {name}(int) __asm__("\\"{symbol}\\"");\n' for name, (symbol, _) in NAMES.items())
    defined = "".join(f"HIDDEN int {name}(int n) {{ return shared(n) + 1; }}\n" for name in NAMES)
    turns = "".join(f"for (int n = 0; n < {calls_of(name)}; n++) sum += {name}(n);\n" for name in NAMES)
    source = f"""
#include <stdio.h>
#define HIDDEN __attribute__((noinline, visibility("hidden")))
HIDDEN int leaf(int n) {{ __asm__ volatile(""); return n; }}
HIDDEN int shared(int n) {{ return leaf(n) + 1; }}
{declared}{defined}
int main(void) {{ int sum = 0; {turns} getchar(); return sum == 0; }}
"""
    made = tmp_path_factory.mktemp("names") / "named"
    return compiled(made, source, "-O0", "-fno-omit-frame-pointer")


@pytest.mark.parametrize("name", NAMES)
def test_names_of_rust_and_go(start_agent: StartAgent, named: Path, name: str) -> None:
    written = NAMES[name][1]
    place, call = (json.dumps(f"{kind}:{named}:{written}") for kind in ("uprobe", "ucall"))
    agent = start_agent(
        "probes:\n"
        f"  - {{name: entry, attach: {place}, metrics: [{{counter: entries_total}}]}}\n"
        f"  - {{name: call, attach: {call}, metrics: [{{counter: calls_total}}]}}\n"
    )
    subprocess.run([named], check=True, stdin=subprocess.DEVNULL)
    eventually(lambda: agent.scrape().total("kprobe_entries_total") == calls_of(name))
    eventually(lambda: agent.scrape().total("kprobe_calls_total") == calls_of(name))


def test_list(named: Path) -> None:
    command = [sys.executable, "-m", "kprobe_exporter", "list", "-x", str(named)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert {f"uprobe:{named}:{written}" for _, written in NAMES.values()} <= set(listed)


@pytest.mark.needs("initial_pid_namespace")
@pytest.mark.needs(USER_STACKS)
def test_stacks(start_agent: StartAgent, named: Path) -> None:
    """At a function's entry its caller has no frame yet: the stack goes on with the caller's caller."""
    place = json.dumps(f"uprobe:{named}:leaf")
    agent = start_agent(f"probes: [{{name: leaf, attach: {place}, stacks: {{user: true}}, limit: none}}]\n")
    expected = {written.replace(" ", "_"): calls_of(name) for name, (_, written) in NAMES.items()}
    with subprocess.Popen([named], stdin=subprocess.PIPE) as process:  # it waits for its input
        eventually(lambda: sum(folded(agent, "leaf").values()) == sum(expected.values()))
        stacks = folded(agent, "leaf")
        process.communicate()
    counts: Counter[str] = Counter()
    for stack, hits in stacks.items():
        *_, outer, caller, last = stack
        assert (outer, last) == ("named`main", "named`leaf")
        counts[caller.removeprefix("named`")] += hits
    assert counts == expected
