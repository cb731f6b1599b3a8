"""What the kernel tests share: a real tracefs, agents on it, and the machine left as it was found."""

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random, randrange

import pytest

from kprobe_exporter.cli import main

# What `run` imports, imported once here and inherited by every forked agent.
from kprobe_exporter.cli import run as run  # noqa: PLC0414
from kprobe_exporter.symbols.addresses import Symbols, Table
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.profile import parse_stats
from tests.agent_process import AgentProcess, running
from tests.conftest import needs_tracefs
from tests.support.leftovers import definitions, instances
from tests.support.private_tracefs import TRACEFS
from tests.trace_process import StartTrace, traces

SEED = 20261121

StartAgent = Callable[..., AgentProcess]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=SEED, help="of the random tests; 0 for a new one")
    parser.addoption("--events", type=int, default=50_000, help="that are read twice and compared")


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """The same sequence in every run, so that a failure is news; ``--seed 0`` looks for new ones."""
    seed = request.config.getoption("--seed") or randrange(1, 2**32)
    print(f"to repeat this: --seed {seed}")
    return Random(seed)


@pytest.fixture
def events(request: pytest.FixtureRequest) -> int:
    """How many events are compared: a million takes seconds here, and minutes under emulation."""
    number: int = request.config.getoption("--events")
    return number


@pytest.fixture(scope="session")
def tracefs() -> Path:
    """The kernel's tracefs, in the mount namespace of these tests."""
    needs_tracefs()
    return TRACEFS


@pytest.fixture(scope="session", autouse=True)
def names_read_once(tracefs: Path) -> Iterator[None]:
    """The kernel's 50,000 functions and 190,000 symbols, read once for each set of modules.

    Forked agents inherit them: under emulation reading them takes several times as long as all the rest of
    an agent's start. A test that cannot read them runs in a process of its own.
    """
    if isinstance(vars(Resolver)["_places"], property):
        # tests/faults has this fixture too, and pytest keeps the two apart: its run here is the second one.
        yield
        return
    read: Callable[[Resolver], dict[str, list[str]] | None] = vars(Resolver)["_places"].func
    look: Callable[[Symbols], None] = vars(Symbols)["_look_again"]
    modules_file = Path("/proc/modules")
    functions: dict[tuple[str, ...], dict[str, list[str]] | None] = {}
    tables: dict[frozenset[bytes], Table | None] = {}

    def places(resolver: Resolver) -> dict[str, list[str]] | None:
        lines = modules_file.read_text().splitlines() if modules_file.exists() else ()
        modules = tuple(sorted(line.partition(" ")[0] for line in lines))
        if modules not in functions:
            functions.clear()
            functions[modules] = read(resolver)
        return functions[modules]

    def look_again(symbols: Symbols) -> None:
        modules = symbols._loaded_modules()
        if modules in tables and symbols._table is None and symbols._kallsyms_visible():
            symbols._table, symbols._modules = tables[modules], modules
        look(symbols)

    kernel = MountedTracefs(tracefs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Resolver, "_places", property(places))
        _ = Resolver.of(kernel)._places
        symbols = Symbols(kernel)
        if symbols._kallsyms_visible():
            symbols.name(0)
            tables[symbols._modules] = symbols._table
        patch.setattr(Symbols, "_look_again", look_again)
        # What is there by now is not looked through by the collections of every forked process.
        gc.collect()
        gc.freeze()
        yield
        # hypothesis looks at the end for what refers to a frozen object, and would find nothing.
        gc.unfreeze()


@pytest.fixture
def files(tracefs: Path) -> MountedTracefs:
    """The seam that the agent itself uses."""
    return MountedTracefs(tracefs)


@pytest.fixture(autouse=True)
def as_found(tracefs: Path) -> Iterator[None]:
    """Every test leaves the kernel's definitions and instances as they were."""
    before = definitions(tracefs), instances(tracefs)
    yield
    assert (definitions(tracefs), instances(tracefs)) == before


@pytest.fixture
def start_agent(tmp_path: Path, tracefs: Path, as_found: None) -> Iterator[StartAgent]:
    """Starts agents with a configuration, and ends those that still run."""
    numbers = itertools.count()
    with ExitStack() as stack:

        def start(config: str | None, *arguments: str, serving: bool = True) -> AgentProcess:
            number = next(numbers)
            extra = list(arguments)
            if config is not None:
                path = tmp_path / f"config{number}.yaml"
                path.write_text(config)
                path.chmod(0o600)
                extra += ["--config", str(path)]
            agent = AgentProcess(
                tmp_path / f"agent{number}.log",
                main,
                ["run", "--web.listen-address", "127.0.0.1:0", *extra],
            )
            stack.enter_context(running(agent))
            if serving:
                agent.wait_until_serving()
            return agent

        yield start


@pytest.fixture
def trace(tmp_path: Path, as_found: None) -> Iterator[StartTrace]:
    """Starts traces with arguments, and ends those that still run."""
    with traces(tmp_path) as start:
        yield start


@pytest.fixture
def entries(files: MountedTracefs) -> Callable[[], list[int]]:
    """The events in each ring buffer of the agent's instance."""

    def read() -> list[int]:
        per_cpu = "instances/kprobe_exporter/per_cpu"
        return [
            parse_stats(files.read(f"{per_cpu}/{cpu}/stats").decode()).entries for cpu in files.names(per_cpu)
        ]

    return read
