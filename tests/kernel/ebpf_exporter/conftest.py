"""One agent for the examples that a module of tests names in EXAMPLES, as booting one for each takes long."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprobe_exporter.cli import main
from tests.kernel.conftest import READ_EVERY
from tests.kernel.ebpf_exporter.counted import DIRECTORY, Grown
from tests.support.agent_process import AgentProcess, running
from tests.support.leftovers import unchanged
from tests.support.patience import patience


@pytest.fixture(scope="module")
def agent(
    request: pytest.FixtureRequest, tracefs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """An agent on CPU 0 with the module's examples, unchanged; the tests run on CPU 1.

    Events in interrupts of the agent's threads are not recorded.
    """
    files = [DIRECTORY / f"{name}.yaml" for name in request.module.EXAMPLES]
    free = os.sched_getaffinity(0)
    log = tmp_path_factory.mktemp("ebpf_exporter") / "agent.log"
    arguments = ["run", "--web.listen-address", "127.0.0.1:0"]
    arguments += [word for file in files for word in ("--config", str(file))]
    with unchanged(tracefs), pytest.MonkeyPatch.context() as patch:
        patch.setattr("kprobe_exporter.tracefs.poller.MAX_AGE", READ_EVERY)
        os.sched_setaffinity(0, {0})
        try:
            with running(AgentProcess(log, main, arguments)) as agent:
                agent.wait_until_serving()
                os.sched_setaffinity(0, {max(free)})
                yield agent
        finally:
            os.sched_setaffinity(0, free)
            print(log.read_text(errors="replace"))


@pytest.fixture
def grown(agent: AgentProcess) -> Grown:
    """How much samples of the agent grow from here on."""
    return Grown(agent)


@pytest.fixture(autouse=True)
def timeouts() -> Iterator[None]:
    """No call of a socket waits forever for what a test has not provoked."""
    socket.setdefaulttimeout(patience(20))
    yield
    socket.setdefaulttimeout(None)
