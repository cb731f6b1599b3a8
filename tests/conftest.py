"""What every suite shares: a tracefs, the marker `needs`, and promtool.

The tracefs is in a mount namespace of pytest's own: no suite depends on what this machine has mounted, or
leaves anything mounted.

`@pytest.mark.needs("kprobe_events")` skips a test where the kernel has no such file below its
tracefs, and no such word in its README; `needs("initial_pid_namespace")`, where events name threads by other
ids than getpid(2). The harness (tests/vm) knows what each kernel under test
lacks: any other skip there is a failure.
"""

import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel_ids import in_the_first_namespace
from tests.support.private_tracefs import TRACEFS, provide


def pytest_configure() -> None:
    # Asked to end, pytest ends what its fixtures have started, such as VMs; SIGTERM would not let it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    provide()


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """A command that ran in this process has set up the package's log: the next test finds it as it was."""
    log = logging.getLogger("kprobe_exporter")
    before = log.level, log.propagate, log.handlers[:]
    yield
    log.setLevel(before[0])
    log.propagate, log.handlers[:] = before[1:]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        needs_tracefs()
        for feature in marker.args:
            if not has(feature):
                pytest.skip(f"needs {feature}")


def needs_tracefs() -> None:
    """Skip a test where there is no tracefs for it."""
    if why := provide():
        pytest.skip(why)


def has(feature: str) -> bool:
    """Whether this machine's tracefs has the file or names the word in its README, or has the namespace."""
    if feature == "initial_pid_namespace":
        return in_the_first_namespace()
    readme = TRACEFS / "README"
    return (TRACEFS / feature).exists() or (readme.exists() and feature in readme.read_text())


@pytest.fixture
def promtool() -> str:
    """Prometheus' own judge of metrics; where tests run for the record it must be there."""
    unpacked = Path(__file__).parents[1] / "build/prometheus/usr/bin/promtool"
    found = shutil.which("promtool") or shutil.which(unpacked)
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail(f"promtool is neither on PATH nor at {unpacked}")
    pytest.skip("no promtool: `make test` fetches it, or install Debian's prometheus package")
