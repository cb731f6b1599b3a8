"""Fixtures of the kernel tests: a real tracefs, agents on it, and a check that each test cleans up."""

import encodings.idna  # noqa: F401 - for the first scrape, see below
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random, randrange

import pytest

from kprobe_exporter.cli import main

# This loads the modules of `run` once; every forked agent inherits them.
from kprobe_exporter.cli import run as run  # noqa: PLC0414
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.profile import parse_stats
from tests.conftest import needs_tracefs
from tests.support.agent_process import AgentProcess, running
from tests.support.kernel_modules import MODULE
from tests.support.leftovers import unchanged
from tests.support.mounts import mounted
from tests.support.patience import eventually
from tests.support.private_tracefs import TRACEFS
from tests.support.read_once import read_once
from tests.support.trace_process import StartTrace, traces

SEED = 20261121

StartAgent = Callable[..., AgentProcess]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=SEED, help="of the random tests; 0 for a new one")
    parser.addoption("--events", type=int, default=50_000, help="that are read twice and compared")
    parser.addoption("--kills", type=int, default=6, help="of an agent with a recording")
    parser.addoption("--seeds", type=int, default=24, help="of the differential tests: how many cases")
    parser.addoption("--first-seed", type=int, default=1, help="of them")
    parser.addoption("--at-once", type=int, default=20, help="of them: how many share an agent and a load")
    parser.addoption("--draw", action="append", default=[], help="the known fault of this name as well")


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """A generator with a fixed seed, so that only a change makes a test fail; ``--seed 0`` draws one."""
    seed = request.config.getoption("--seed") or randrange(1, 2**32)
    print(f"to repeat this: --seed {seed}")
    return Random(seed)


@pytest.fixture
def events(request: pytest.FixtureRequest) -> int:
    """The number of events to compare: a million takes seconds natively, and minutes under emulation."""
    number: int = request.config.getoption("--events")
    return number


@pytest.fixture(scope="session")
def tracefs() -> Path:
    """The kernel's tracefs, in the mount namespace of these tests."""
    needs_tracefs()
    return TRACEFS


@pytest.fixture(scope="session", autouse=True)
def kernel_read_once(tracefs: Path) -> Iterator[None]:
    """Read the kernel's functions, symbols and types once; forked agents inherit them."""
    with read_once(MountedTracefs(tracefs)):
        yield


@pytest.fixture
def files(tracefs: Path) -> MountedTracefs:
    """The interface to tracefs that the agent itself uses."""
    return MountedTracefs(tracefs)


@pytest.fixture
def bound(tracefs: Path, tmp_path: Path) -> Iterator[Path]:
    """Another place at which the same tracefs is mounted, as in a container."""
    (tmp_path / "tracefs").mkdir()
    with mounted(tmp_path / "tracefs", "--bind", source=tracefs) as place:
        yield place


@pytest.fixture(autouse=True)
def as_found(tracefs: Path) -> Iterator[None]:
    """Every test leaves the kernel's definitions and instances as they were."""
    with unchanged(tracefs):
        yield


READ_EVERY = 0.2
"""Seconds for which an agent of these tests serves the kernel's counts without reading them again. A user's
agent does so for a second, for which nearly every test would wait."""


@pytest.fixture
def start_agent(
    tmp_path: Path, tracefs: Path, as_found: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartAgent]:
    """A function that starts an agent with a configuration; agents that still run are ended at teardown."""
    monkeypatch.setattr("kprobe_exporter.tracefs.poller.MAX_AGE", READ_EVERY)  # the agent is forked
    numbers = itertools.count()
    with ExitStack() as stack:

        def start(
            config: str | None,
            *arguments: str,
            serving: bool = True,
            main: Callable[[list[str]], object] = main,
        ) -> AgentProcess:
            number = next(numbers)
            extra = list(arguments)
            if config is not None:
                path = tmp_path / f"config{number}.yaml"
                path.write_text(config)
                path.chmod(0o600)
                extra += ["--config", str(path)]
            run = ["run", "--web.listen-address", "127.0.0.1:0", *extra]
            agent = AgentProcess(tmp_path / f"agent{number}.log", main, run)
            stack.enter_context(running(agent))
            if serving:
                agent.wait_until_serving()
            return agent

        yield start


@pytest.fixture
def trace(tmp_path: Path, as_found: None) -> Iterator[StartTrace]:
    """A function that starts a trace with arguments; traces that still run are ended at teardown."""
    with traces(tmp_path) as start:
        yield start


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """A thread that does only what a test submits, also while the agent starts: a call that runs while its
    probe is enabled may leave only one of its two events."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def no_module() -> Iterator[None]:
    """MODULE is not loaded before the test or after it."""
    loaded = Path("/sys/module", MODULE)
    assert not loaded.exists()
    yield
    if loaded.exists():
        subprocess.run(["rmmod", MODULE], check=True)


@pytest.fixture
def on_cpu() -> Iterator[Callable[[int], None]]:
    """A function that binds this thread and its later children to a CPU; teardown lifts the binding.

    Events in interrupts of the agent's threads are not recorded. If the agent has a CPU of its own, no event
    on another CPU is in such an interrupt.
    """
    free = os.sched_getaffinity(0)
    yield lambda cpu: os.sched_setaffinity(0, {cpu} & free or free)
    os.sched_setaffinity(0, free)


@pytest.fixture
def looks_around(files: MountedTracefs) -> Callable[[], None]:
    """A function that waits until the agent has completed a check for interference.

    Each check resumes recording, which is stopped here twice: at the second time, a whole check is over.
    """

    def wait() -> None:
        recording = "instances/kprobe_exporter/tracing_on"
        for _ in range(2):
            files.write(recording, "0")
            eventually(lambda: files.read(recording).startswith(b"1"))

    return wait


@pytest.fixture
def entries(files: MountedTracefs) -> Callable[[], list[int]]:
    """A function that returns the number of events in each per-CPU buffer of the agent's instance."""

    def read() -> list[int]:
        per_cpu = "instances/kprobe_exporter/per_cpu"
        return [
            parse_stats(files.read(f"{per_cpu}/{cpu}/stats").decode()).entries for cpu in files.names(per_cpu)
        ]

    return read
