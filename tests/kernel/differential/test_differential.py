"""What the agent shows of drawn probes under drawn loads is what the load says that it did."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.kernel.differential.cases import MOST_AT_ONCE, Case, draw, joint
from tests.kernel.differential.known import KNOWN
from tests.kernel.differential.load import Load, script
from tests.kernel.differential.probes import configuration
from tests.kernel.differential.run import Runner
from tests.kernel.differential.shrink import narrowed, shrink
from tests.vm.kernels import EPROBES, FPROBES

pytestmark = pytest.mark.needs("kprobe_events")

SHRINKING = 240
"""Seconds for making a failing case smaller; tests/vm ends a suite in which no test ends for much longer."""
MOST_LINES = 40
"""Differences of several cases that are printed before one of them is found."""


@pytest.fixture
def excluded(request: pytest.FixtureRequest) -> frozenset[str]:
    """The known faults that the drawing stays clear of."""
    return frozenset(KNOWN) - set(request.config.getoption("--draw"))


@pytest.fixture
def runner(start_agent: StartAgent, tmp_path: Path) -> Iterator[Runner]:
    load = Load.build(tmp_path)
    agent = start_agent(configuration((), str(load.program)))
    yield Runner(agent, tmp_path / "config0.yaml", load)
    assert "Traceback" not in agent.output()


@pytest.fixture
def cases(request: pytest.FixtureRequest, excluded: frozenset[str]) -> list[Case]:
    first, number = (request.config.getoption(name) for name in ("--first-seed", "--seeds"))
    kernel = {"fprobes": has(FPROBES), "eprobes": has(EPROBES)}
    return [draw(seed, **kernel, excluded=excluded) for seed in range(first, first + number)]


@pytest.fixture
def at_once(request: pytest.FixtureRequest) -> int:
    """Cases that share a configuration and a load."""
    number: int = request.config.getoption("--at-once")
    return min(number, MOST_AT_ONCE)


def test_seeds(runner: Runner, cases: Sequence[Case], at_once: int) -> None:
    """All seeds, some at once; a failing one is made smaller and printed."""
    begun = time.monotonic()
    for start in range(0, len(cases), at_once):
        together = cases[start : start + at_once]
        busy = start // at_once % 2 == 1
        if wrong := runner.run(together, busy=busy):
            print("these differ:", *wrong[:MOST_LINES], sep="\n", flush=True)
            pytest.fail(explained(runner, together, wrong, busy=busy), pytrace=False)
        last = together[-1].seed
        print(f"seeds to {last}: {time.monotonic() - begun:.0f} s", runner.seconds, flush=True)


def explained(runner: Runner, together: Sequence[Case], wrong: Sequence[str], *, busy: bool) -> str:
    """The smallest failing case that was found, as a configuration and a load."""

    def fails(*some: Case) -> list[str]:
        runner.reset()
        return runner.run(some, busy=busy)

    named = [case for case in together if any(f"k{case.seed}_" in line for line in wrong)]
    end = time.monotonic() + SHRINKING
    for some in (named, together):
        if some and fails(*some):
            few = narrowed(some, lambda half: bool(fails(*half)))
            whole = few[0] if len(few) == 1 else joint(few)
            small = shrink(whole, lambda smaller: time.monotonic() < end and bool(fails(smaller)))
            return report(small, fails(small) or wrong, str(runner.load.program), busy=busy)
    seeds = f"{together[0].seed} to {together[-1].seed}"
    return "\n".join([f"the seeds {seeds} failed together, once:", *wrong])


def report(case: Case, wrong: Sequence[str], program: str, *, busy: bool) -> str:
    """A case as two configurations and two loads, and what differs."""
    when = " (its second load runs during the reload)" if busy else ""
    lines = [f"seed {case.seed}{when}, of which this much is needed:"]
    for number, phase in enumerate(case.phases, 1):
        lines += [f"configuration {number}:", configuration(phase.probes, program)]
        lines += [f"load {number}:", script(phase.operations)]
    return "\n".join([*lines, *wrong])
