"""Examples of file systems that are modules of the kernel."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.ebpf_exporter.counted import TIMES, Grown
from tests.support.kernel_modules import unload
from tests.support.mounts import mounted

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = ("cephfs-dist", "ext4dist", "xfsdist")

SIZES = {"ext4": 16 << 20, "xfs": 512 << 20}
"""Bytes of an image: mkfs.xfs makes none below 300 MiB. What is not written takes no memory."""


@pytest.fixture(scope="module", autouse=True)
def modules() -> Iterator[None]:
    """Load ceph before the agent starts: its probes find the functions. Others wait for a mount."""
    subprocess.run(["modprobe", "--all", "loop", "ceph"], check=True)
    assert not any(Path("/sys/module", module).exists() for module in SIZES)
    yield
    for module in ("ceph", *SIZES):
        unload(module)


@contextmanager
def file_system(kind: str, directory: Path) -> Iterator[Path]:
    """A new file system of this kind in an image on a tmpfs."""
    memory, place = directory / "memory", directory / "place"
    for made in (memory, place):
        made.mkdir()
    with mounted(memory, "-t", "tmpfs"):
        image = memory / "image"
        image.touch()
        os.truncate(image, SIZES[kind])
        subprocess.run([f"mkfs.{kind}", "-q", image], check=True)
        with mounted(place, "-t", kind, "-o", "loop", source=image):
            yield place


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_operations_of_a_file_system(grown: Grown, tmp_path: Path, kind: str) -> None:
    """The test alone uses the file system: it knows what it did."""
    with file_system(kind, tmp_path) as place:
        for number in range(TIMES):
            fd = os.open(place / "file", os.O_RDWR | os.O_CREAT)
            for _ in range(2):
                os.pwrite(fd, b"x", number)
            for _ in range(3):
                os.pread(fd, 1, 0)
            os.fsync(fd)
            if number:
                (place / "file").stat()
            os.close(fd)
        expected = {"open": TIMES, "write": 2 * TIMES, "read": 3 * TIMES, "sync": TIMES}
        if kind == "ext4":
            expected["getattr"] = TIMES - 1
        name = f"{kind}_latency_seconds"
        grown.until(sum(expected.values()), f"{name}_count")
        metrics = grown.agent.scrape()
        for operation, times in expected.items():
            assert grown.of(metrics, f"{name}_count", operation=operation) == times, operation
            assert 0 < grown.of(metrics, f"{name}_sum", operation=operation) < 600
        assert grown.of(metrics, f"{name}_count") == sum(expected.values())


def test_each_function_of_cephfs_is_there(grown: Grown) -> None:
    """Calling them takes a Ceph cluster."""
    metrics = grown.agent.scrape()
    for operation in ("read", "write", "mkdir", "unlink", "fsync"):
        assert metrics.value("kprobe_up", probe=f"cephfs_{operation}") == 1, operation
