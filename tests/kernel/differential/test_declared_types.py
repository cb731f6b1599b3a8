"""Probes drawn by the C types that a kernel declares, fired by programs that end within milliseconds.

The counts are compared with what the programs were told to do and what they got, also while another probe
is at the same event.
"""

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_native_id

import pytest
import yaml

from tests.kernel.conftest import StartAgent
from tests.kernel.differential.declared import FILE, RUNS, Drawing, Drawn, Run, events_of, number
from tests.kernel.differential.run import RELOADED
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.compiling import compiled
from tests.support.kernel_ids import in_the_first_namespace
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("events/syscalls", "uprobe_events")

LOADS = 3
GLOBAL = {"limit": "none", "buffer_size": "8MiB"}
"""A busy machine calls some of the drawn calls often, and a condition of a metric keeps none out."""
PROGRAM = Path(__file__).with_name("declared.c")
LOST = "kprobe_exporter_events_lost_total"


@dataclass
class Batch:
    """Some cases, each with its program in the directory, and the runs so far of each by its name."""

    directory: Path
    cases: Sequence[Drawn]
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def configuration(self, *more: object) -> str:
        probes = [one.yaml(self.directory) for one in self.cases]
        return yaml.safe_dump({"global": GLOBAL, "probes": [*probes, *more]}, width=1000)

    def load(self) -> None:
        for one in self.cases:
            self.runs.setdefault(one.name, []).extend(
                run(self.directory / one.name, one) for _ in range(RUNS)
            )


def run(program: Path, one: Drawn) -> Run:
    """Run a program, which stores the results of its steps in a file that has no name."""

    def prepare() -> None:
        os.sched_setaffinity(0, {one.cpu})
        os.nice(one.nice)

    results = os.memfd_create("results")
    os.truncate(results, 4096)
    words = [str(results if word == FILE else word) for step in one.steps for word in step]
    arguments = [program, str(results), "lingers" if one.lingers else "ends", *words]
    parent = Path(f"/proc/self/task/{get_native_id()}/comm").read_bytes().removesuffix(b"\n")
    with subprocess.Popen(arguments, pass_fds=(results,), preexec_fn=prepare) as process:  # noqa: PLW1509
        pass
    assert process.returncode == one.status, one
    found = [int.from_bytes(os.pread(results, 8, 8 * at), "little") for at in range(len(one.steps))]
    os.close(results)
    return Run(process.pid, one.cpu, found, parent)


@pytest.fixture
def drawn(request: pytest.FixtureRequest, tracefs: Path) -> list[Drawn]:
    first, count = (request.config.getoption(name) for name in ("--first-seed", "--seeds"))
    known = events_of(tracefs)
    ids = in_the_first_namespace()
    return [Drawing(seed, known, ids=ids).drawn() for seed in range(first, first + count)]


@pytest.fixture
def program(tmp_path: Path, drawn: Sequence[Drawn]) -> Path:
    calls = sorted({one.call for one in drawn} - {""})
    table = "".join(f'{{"{call}", SYS_{number(call)}}},\n' for call in calls)
    (tmp_path / "calls.h").write_text(table or '{"", 0},\n')
    return compiled(tmp_path / "program", PROGRAM.read_text(), "-static", "-I", str(tmp_path))


def test_declared_types(
    request: pytest.FixtureRequest,
    start_agent: StartAgent,
    tmp_path: Path,
    program: Path,
    drawn: Sequence[Drawn],
) -> None:
    failed: list[str] = []
    at_once: int = request.config.getoption("--at-once")
    begun = time.monotonic()
    for start in range(0, len(drawn), at_once):
        together = drawn[start : start + at_once]
        wrong = compare(start_agent, tmp_path, program, together)
        print(f"{together[-1].name}: {time.monotonic() - begun:.0f} s", *wrong, sep="\n", flush=True)
        failed += wrong
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)


def compare(start_agent: StartAgent, directory: Path, program: Path, cases: Sequence[Drawn]) -> list[str]:
    """Run the cases under an agent; return a sentence for each that differs, and for losses."""
    batch = Batch(directory, cases)
    added = [
        {"name": f"added_{at}", "attach": attach, "limit": "none", "filter": 'common_comm == "nobody"'}
        for at, attach in enumerate(sorted({str(one.yaml(directory)["attach"]) for one in cases}))
        if attach.startswith("tracepoint:")
    ]
    for one in cases:
        shutil.copy(program, directory / one.name)
    before = {*directory.glob("config*.yaml")}
    agent = start_agent(batch.configuration())
    [config] = {*directory.glob("config*.yaml")} - before
    wrong: dict[str, str] = {}
    for load in range(1, LOADS + 1):
        if load > 1:
            reload(agent, config, batch.configuration(*added * (load == 2)))
        batch.load()
        for name, sentence in differences(agent, batch).items():
            wrong.setdefault(name, f"{sentence}, after {load} loads")
    told = agent.scrape()
    lost = {reason["reason"]: told.value(LOST, **reason) for reason in told.labels(LOST)}
    of = f"seeds {cases[0].name} to {cases[-1].name}"
    losses = [f"{of}: {number:.0f} events lost: {reason}" for reason, number in lost.items() if number]
    agent.end()
    for one in cases:
        (directory / one.name).unlink()
    return [*wrong.values(), *losses]


def differences(agent: AgentProcess, batch: Batch) -> dict[str, str]:
    """A sentence for each case, by its name, whose counts are not right in time."""
    wrong: dict[str, str] = {}

    def right() -> bool:
        metrics = agent.scrape()
        wrong.clear()
        for one in batch.cases:
            wanted, found = one.expected(batch.runs[one.name]), shown(metrics, one)
            if found != wanted:
                wrong[one.name] = f"{one}: more {found - wanted}, less {wanted - found}"
        return not wrong

    with suppress(AssertionError):
        eventually(right, 3)
    return wrong


def reload(agent: AgentProcess, config: Path, text: str) -> None:
    written = agent.log.stat().st_size
    config.write_text(text)
    agent.signal(signal.SIGHUP)
    eventually(lambda: RELOADED in agent.log.read_bytes()[written:])


def shown(metrics: Metrics, one: Drawn) -> Counter[tuple[str, ...]]:
    name = f"kprobe_{one.name}_total"
    found: Counter[tuple[str, ...]] = Counter()
    for labels in metrics.labels(name):
        if value := int(metrics.value(name, **labels)):
            found[tuple(labels[label.name] for label in one.labels)] = value
    return found
