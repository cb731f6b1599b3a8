"""Options of the fault tests and their fixtures: those of the kernel tests, with an agent in each."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import files, looks_around, start_agent, tracefs  # noqa: F401
from tests.support.leftovers import unchanged
from tests.support.systemd import port, systemd  # noqa: F401

if "KPROBE_EXPORTER_VM" in os.environ:
    from tests.kernel.conftest import kernel_read_once  # noqa: F401


@pytest.fixture
def as_found(tracefs: Path) -> Iterator[None]:  # noqa: F811
    """A test with an agent of its own leaves the kernel's definitions and instances as they were."""
    with unchanged(tracefs):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=0.4, help="that the soak takes")
    parser.addoption("--every", type=int, default=12, help="change after which an agent is killed; 1 for all")
    parser.addoption("--figures", type=Path, help="where the soak writes what it measured, as JSON")
    parser.addoption("--outages", type=int, default=4, help="of receivers of OTLP")
    parser.addoption("--outage-seconds", type=float, default=6, help="that one takes at most")
    parser.addoption("--outage-seed", type=int, default=0, help="of the outages; 0 for a new one")
