"""System calls drawn by the C types that a kernel declares, called by programs that end within milliseconds.

Each call has an invalid descriptor, so that it changes nothing, and extreme values of its arguments' types.
The counts are compared with the calls that the programs were told to make, also while another probe is at the
same event.
"""

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import yaml

from tests.kernel.conftest import StartAgent
from tests.kernel.differential.events import _compares
from tests.kernel.differential.probes import Comparison, Value
from tests.kernel.differential.run import RELOADED
from tests.kernel.differential.types import RANGES, read_as
from tests.support.agent_process import AgentProcess
from tests.support.compiling import compiled
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("events/syscalls")

C_TYPES = {
    **dict.fromkeys(("long", "off_t", "loff_t", "ssize_t"), "s64"),
    **dict.fromkeys(("unsigned long", "size_t", "u64", "__u64"), "u64"),
    **dict.fromkeys(("int", "pid_t", "clockid_t", "rwf_t"), "s32"),
    **dict.fromkeys(("unsigned int", "unsigned", "qid_t", "u32", "__u32", "uid_t", "gid_t"), "u32"),
    "umode_t": "u16",
}
"""C's types on 64 bits; a field of another type, as a pointer, is not drawn."""

FIELD = re.compile(r"^\tfield:(.+?) (\w+);\toffset:", re.MULTILINE)
OTHER = re.compile("common_|__syscall_nr")
OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "&")
AT_ONCE, RUNS, CALLS, LOADS = 8, 2, 6, 3

PROGRAM = """
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static const struct { const char *name; long number; } table[] = { %s };
int main(int count, char **words) {
    for (int at = 1; at + 6 < count; at += 7)
        for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
            if (!strcmp(table[i].name, words[at])) {
                long a[6];
                for (int n = 0; n < 6; n++) a[n] = strtoull(words[at + 1 + n], 0, 10);
                syscall(table[i].number, a[0], a[1], a[2], a[3], a[4], a[5]);
            }
    if (!strcmp(words[count - 1], "lingers")) usleep(300000);
    return 0;
}
"""


@dataclass(frozen=True)
class Drawn:
    """A probe of one system call and the calls of its program, whose name only this probe lets pass.

    A program that ``lingers`` lives long enough for a look-up in /proc.
    """

    name: str
    call: str
    kind: str
    fields: dict[str, str]
    condition: tuple[Comparison, ...]
    as_filter: bool
    labels: tuple[str, ...]
    calls: tuple[tuple[int, ...], ...]
    lingers: bool

    def yaml(self) -> dict[str, object]:
        condition = " && ".join(map(str, self.condition))
        metric: dict[str, object] = {"counter": f"{self.name}_total", "labels": list(self.labels)}
        entry = f"tracepoint:syscalls:sys_enter_{self.call}"
        attach = f"syscall:{self.call}" if self.kind == "syscall" else entry
        written: dict[str, object] = {"name": self.name, "attach": attach, "limit": "none"}
        used = {*self.labels, *(one.field for one in self.condition)}
        if fetched := used & self.fields.keys():
            written["fetch"] = {one: one for one in sorted(fetched)}
        if self.as_filter:
            written["filter"] = condition
        else:
            metric["where"] = condition
        return {**written, "metrics": [metric]}

    def expected(self) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        for call in self.calls:
            values: dict[str, Value] = {"comm": self.name.encode()}
            for number, (name, kind) in zip(call, self.fields.items(), strict=False):
                values[name] = read_as(number, kind or "u64")
            if all(_compares(one, values[one.field]) for one in self.condition):
                shown = [values[name] for name in self.labels]
                found[tuple(one.decode() if isinstance(one, bytes) else str(one) for one in shown)] += RUNS
        return found


def system_calls(tracefs: Path) -> dict[str, dict[str, str]]:
    """The calls whose first argument is a descriptor, with their arguments' types; "" for one not drawn.

    Calls that the C library's headers do not know yet cannot be made.
    """
    macros = ["cc", "-E", "-dM", "-x", "c", "-include", "sys/syscall.h", os.devnull]
    known = subprocess.run(macros, check=True, capture_output=True, text=True).stdout
    found = {}
    for path in sorted(tracefs.glob("events/syscalls/sys_enter_*/format")):
        found_here = FIELD.findall(path.read_text())
        fields = [(name, C_TYPES.get(kind, "")) for kind, name in found_here if not OTHER.match(name)]
        if fields and fields[0][0] == "fd" and len(fields) > 1:
            found[path.parent.name.removeprefix("sys_enter_")] = dict(fields)
    return {call: fields for call, fields in found.items() if f"SYS_{number(call)} " in known}


def number(call: str) -> str:
    """What the C library calls a call."""
    return call.removeprefix("new")


def extremes(kind: str) -> list[int]:
    low, high = RANGES[kind or "u64"]
    return sorted({low, low + 1, 0, 1, 7, high - 1, high, -1 % (1 << 64), -10 % (1 << 64), 1 << 31, 1 << 32})


def draw(seed: int, known: dict[str, dict[str, str]]) -> Drawn:
    random = Random(seed)
    call = random.choice(sorted(known))
    fields = known[call]
    name = f"d{seed}"
    typed = [field for field, kind in fields.items() if kind and field != "fd"]
    condition = [Comparison("comm", "==", name)]
    if typed and random.random() < 0.7:
        field = random.choice(typed)
        low, high = RANGES[fields[field]]
        constants = [one for one in extremes(fields[field]) if low <= one <= high]
        condition.append(Comparison(field, random.choice(OPERATORS), random.choice(constants)))
    random.shuffle(condition)
    labels = random.sample([*typed, "comm"], random.randint(0, min(2, len(typed))))
    calls = []
    for _ in range(CALLS):
        others = [random.choice(extremes(kind)) for kind in [*fields.values()][1:]]
        calls.append((*([2**32 - 1, *others]), *[0] * 6)[:6])
    kind, as_filter = random.choice(("enter", "syscall")), random.random() < 0.6
    lingers = random.random() < 0.2
    shown = tuple(labels)
    return Drawn(name, call, kind, fields, tuple(condition), as_filter, shown, tuple(calls), lingers)


@pytest.fixture
def drawn(request: pytest.FixtureRequest, tracefs: Path) -> list[Drawn]:
    first, number = (request.config.getoption(name) for name in ("--first-seed", "--seeds"))
    known = system_calls(tracefs)
    return [draw(seed, known) for seed in range(first, first + number)]


@pytest.fixture
def program(tmp_path: Path, drawn: Sequence[Drawn]) -> Path:
    calls = sorted({one.call for one in drawn})
    table = "".join(f'{{"{call}", SYS_{number(call)}}},\n' for call in calls)
    return compiled(tmp_path / "program", PROGRAM % table, "-static")


def test_declared_types(
    start_agent: StartAgent, tmp_path: Path, program: Path, drawn: Sequence[Drawn]
) -> None:
    for start in range(0, len(drawn), AT_ONCE):
        some = drawn[start : start + AT_ONCE]
        compare(start_agent, tmp_path, program, some)


def compare(start_agent: StartAgent, tmp_path: Path, program: Path, some: Sequence[Drawn]) -> None:
    added = {"name": "added", "attach": f"tracepoint:syscalls:sys_enter_{some[0].call}", "limit": "none"}
    added |= {"filter": 'comm == "nobody"'}
    for one in some:
        shutil.copy(program, tmp_path / one.name)
    before = {*tmp_path.glob("config*.yaml")}
    agent = start_agent(configured(some))
    [config] = {*tmp_path.glob("config*.yaml")} - before
    for load in range(1, LOADS + 1):
        if load > 1:
            reload(agent, config, configured(some, *[added] * (load == 2)))
        for one in some:
            words = [str(word) for call in one.calls for word in (one.call, *call)]
            words += ["lingers"] * one.lingers
            for _ in range(RUNS):
                subprocess.run([tmp_path / one.name, *words], check=True)
        for one in some:
            check(agent, one, load)
    told = agent.scrape()
    for reason in told.labels("kprobe_exporter_events_lost_total"):
        assert told.value("kprobe_exporter_events_lost_total", **reason) == 0, reason
    agent.end()


def check(agent: AgentProcess, one: Drawn, loads: int) -> None:
    wanted = Counter({key: loads * number for key, number in one.expected().items()})
    try:
        eventually(lambda: shown(agent, one) == wanted, 5)
    except AssertionError:
        found = shown(agent, one)
        pytest.fail(f"{one}, after {loads} loads: {found}, expected {wanted}", pytrace=False)


def reload(agent: AgentProcess, config: Path, text: str) -> None:
    written = agent.log.stat().st_size
    config.write_text(text)
    agent.signal(signal.SIGHUP)
    eventually(lambda: RELOADED in agent.log.read_bytes()[written:])


def configured(some: Sequence[Drawn], *more: object) -> str:
    probes = [one.yaml() for one in some]
    return yaml.safe_dump({"global": {"limit": "none"}, "probes": [*probes, *more]}, width=1000)


def shown(agent: AgentProcess, one: Drawn) -> Counter[tuple[str, ...]]:
    metrics, name = agent.scrape(), f"kprobe_{one.name}_total"
    found: Counter[tuple[str, ...]] = Counter()
    for labels in metrics.labels(name):
        if number := int(metrics.value(name, **labels)):
            found[tuple(labels[label] for label in one.labels)] = number
    return found
