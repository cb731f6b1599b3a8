"""The contract's kernels: each test runs on the fake tracefs and on the real one."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.files import MountedTracefs, Tracefs
from tests.conftest import has, needs_tracefs
from tests.support.fake_tracefs import FakeTracefs
from tests.support.leftovers import counts, group
from tests.support.private_tracefs import TRACEFS
from tests.support.system_calls import function


@dataclass
class Kernel:
    """A tracefs, and functions by which a test makes probes fire in its kernel."""

    files: Tracefs
    symbol: str
    call: Callable[[], object]
    fails: str
    fail: Callable[[], object]

    def needs(self, *features: str) -> None:
        """Skip the test if this is the real tracefs and lacks one of the features, as `needs` spells them."""
        for feature in features:
            if isinstance(self.files, MountedTracefs) and not has(feature):
                pytest.skip(f"needs {feature}")


def open_missing() -> None:
    try:
        os.open("/nonexistent", os.O_RDONLY)
    except FileNotFoundError:
        return
    raise AssertionError("/nonexistent exists")


@pytest.fixture(params=["fake", "real"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kernel]:
    """Yield a kernel, and assert that its definitions and instances are the same afterwards."""
    if request.param == "fake":
        fake = FakeTracefs(tmp_path, {"getppid", "do_sys_openat2"}, pages=True)
        tid = threading.get_native_id()
        kernel = Kernel(
            fake,
            "getppid",
            lambda: fake.fire("getppid", tid=tid),
            "do_sys_openat2",
            lambda: fake.fire("do_sys_openat2", f' return=-2 comm="{threading.current_thread().name[:15]}"'),
        )
    else:
        needs_tracefs()
        if not has("kprobe_events"):
            pytest.skip("needs kprobe_events")
        kernel = Kernel(
            MountedTracefs(TRACEFS), function("getppid"), os.getppid, "do_sys_openat2", open_missing
        )
    before = _state(kernel.files)
    yield kernel
    assert _state(kernel.files) == before


def _state(files: Tracefs) -> tuple[list[str], list[str]]:
    lines = [defined.line for defined in list_definitions(files) if counts(group(defined.line))]
    return lines, [name for name in files.names("instances") if counts(name)]
