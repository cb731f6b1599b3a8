"""What all suites share: a tracefs, the marker `needs`, and promtool.

The tracefs is mounted in a mount namespace of pytest's own. No suite depends on what this machine has
mounted, and no suite leaves a mount behind.

`@pytest.mark.needs("kprobe_events")` skips a test if the kernel has neither a file of that name below its
tracefs nor that word in the README there. `needs("initial_pid_namespace")` skips a test where the thread ids
of events differ from those of getpid(2), and `needs("host_proc")` where no /proc has them. The harness
(tests/vm) knows what each kernel under test lacks: any other skip there is a failure.
"""

import logging
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

# Imported before a command runs in this process: commands freeze the garbage collector's objects, and
# hypothesis, which its pytest plugin imports at the latest for the summary, warns if it finds none.
import hypothesis  # noqa: F401
import pytest

from tests.support.kernel_ids import HOST_PROC, in_the_first_namespace
from tests.support.private_tracefs import TRACEFS, provide
from tests.vm.kernels import SYMBOLS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow-share", metavar="K/N", help="of the slow unit tests, only every Nth from K on")


def pytest_configure() -> None:
    # SIGTERM is handled as SIGINT: pytest then finalizes its fixtures, which end the VMs that they started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    provide()


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Restore the package's logger, which a command that ran in this process may have set up."""
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


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure in a VM at once: the summary that repeats it may come half an hour later."""
    if report.failed and os.environ.get("KPROBE_EXPORTER_VM"):
        print(f"\n{report.longreprtext}", flush=True)


def needs_tracefs() -> None:
    """Skip the test if it has no tracefs."""
    if why := provide():
        pytest.skip(why)


def has(feature: str) -> bool:
    """Whether tracefs has this file, or its README this word; or the kernel this symbol; or whether the PID
    namespace is the first, or the host's /proc is mounted, or all users may read this checkout."""
    if feature == "checkout_for_all_users":
        return all(one.stat().st_mode & stat.S_IXOTH for one in Path(__file__).parents)
    if feature == "initial_pid_namespace":
        return in_the_first_namespace()
    if feature == "host_proc":
        return in_the_first_namespace() or HOST_PROC in os.environ
    if feature in SYMBOLS:
        return f" {feature}\n" in Path("/proc/kallsyms").read_text()
    readme = TRACEFS / "README"
    return (TRACEFS / feature).exists() or (readme.exists() and feature in readme.read_text())


@pytest.fixture
def promtool() -> str:
    """Return the path of promtool, Prometheus' checker of metrics. Its absence fails a test under CI."""
    unpacked = Path(__file__).parents[1] / "build/prometheus/usr/bin/promtool"
    found = shutil.which("promtool") or shutil.which(unpacked)
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail(f"promtool is neither on PATH nor at {unpacked}")
    pytest.skip("no promtool: `make test` fetches it, or install Debian's prometheus package")
