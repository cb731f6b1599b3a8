"""probing.kernel_info: the facts of a kernel that plans need, before anything is installed."""

from pathlib import Path

import pytest

from kprobe_exporter.probing.kernel_info import known_kernel
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import running_kernel
from tests.support.fake_tracefs import FakeTracefs


@pytest.mark.parametrize(
    ("kprobes", "binary", "why"),
    [
        (True, True, None),
        (True, False, "exit codes are unknown where events are read as text"),
        (False, True, "exit codes come from kprobe:do_exit, and this kernel was built without CONFIG_KPROBE"),
    ],
)
def test_exit_codes(tmp_path: Path, kprobes: bool, binary: bool, why: str | None) -> None:
    files = FakeTracefs(tmp_path, set(), kprobes=kprobes)
    with Instance.top(files) as instance:
        resolver = Resolver.of(running_kernel(files))
        found = known_kernel(instance, [], resolver, 1, binary=binary).no_exit_codes
    assert (found or "").startswith(why or "")
    assert (found is None) == (why is None)
