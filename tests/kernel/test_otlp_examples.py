"""Each file of examples/otlp does, unchanged, what its first lines say, with a third-party receiver."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.block_devices import null_block
from tests.support.patience import eventually
from tests.support.receivers import Rotel, rotel
from tests.support.system_calls import of_fsync

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = Path(__file__).parents[2] / "examples/otlp"
COLLECTOR = "http://localhost:4318"
CALLS = 200
SLOW = 120_000
"""Microseconds that a request to the block device takes."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Rotel]:
    with rotel(tmp_path) as server:
        yield server


def configuration(name: str, receiver: Rotel) -> str:
    """Return the file with the receiver's port, because another process may use the file's own port."""
    text = (EXAMPLES / name).read_text()
    assert text.count(COLLECTOR) == 1
    return text.replace(COLLECTOR, receiver.endpoints["http/protobuf"])


def test_logs(start_agent: StartAgent, receiver: Rotel) -> None:
    """Failed opens are sent, except those of files that do not exist, which are counted."""
    agent = start_agent(configuration("logs.yaml", receiver))
    for path in ("/nonexistent", "/dev/null/nonexistent"):
        with suppress(OSError):
            os.open(path, os.O_RDONLY)
    eventually(lambda: receiver.found(r"EventName: (kprobe.hit)"))
    sent = receiver.found(r"-> error.type: Str\((\w+)\)")
    assert "ENOTDIR" in sent
    assert "ENOENT" not in sent
    assert agent.scrape().value("kprobe_open_failed_total", errno="ENOENT") > 0


def test_slow_requests(start_agent: StartAgent, receiver: Rotel) -> None:
    """A request that takes more than 100 ms is sent, with the name of its device and its error."""
    start_agent(configuration("logs.yaml", receiver))
    with null_block(SLOW) as device:
        with device.open("rb", buffering=0) as file:
            file.read(4096)
        eventually(lambda: receiver.found(rf"-> kprobe.arg.dev: Str\(({device.name})\)"))
    assert set(receiver.found(r"-> kprobe.arg.error: Str\((\w+)\)")) == {"ok"}
    assert min(map(float, receiver.found(r"-> kprobe.duration: Double\((.+)\)"))) >= SLOW / 1e6


def test_spans(start_agent: StartAgent, receiver: Rotel, tmp_path: Path) -> None:
    """A tenth of the calls is sent, as spans of the system call and of its function, with its arguments."""
    agent = start_agent(configuration("spans.yaml", receiver))
    with (tmp_path / "file").open("w") as file:
        for _ in range(CALLS):
            os.fsync(file)

    agent.end()

    def sent(name: str) -> int:
        return len(receiver.found(rf"Name +: ({name})"))

    eventually(lambda: sent("fsync") == sent(of_fsync()) > 0)
    assert sent("fsync") < CALLS / 2
    # The pointer is one of vfs_fsync_range alone.
    pointers = receiver.found(r"-> kprobe.arg.file: Str\((0x[0-9a-f]{16})\)")
    assert len(pointers) == (sent(of_fsync()) if of_fsync() == "vfs_fsync_range" else 0)
    assert len(receiver.found(r"-> kprobe.arg.datasync: Int\((0)\)")) == sent(of_fsync())


def test_metrics(start_agent: StartAgent, receiver: Rotel) -> None:
    """An agent pushes its metrics a last time when it ends."""
    agent = start_agent(configuration("metrics.yaml", receiver))
    scraped = agent.scrape()
    assert {labels["probe"] for labels in scraped.labels("kprobe_up")} == {"retransmit", "reclaim"}
    agent.end()
    pushed = {"kprobe_up", "kprobe_hits_total", "kprobe_exporter_events_total"}
    eventually(lambda: pushed <= set(receiver.found(r"-> Name: (\S+)")))
