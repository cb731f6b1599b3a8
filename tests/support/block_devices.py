"""A block device of memory for a test, and what the kernel itself counts of it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.kernel_modules import unload


@contextmanager
def null_block(latency: int = 0) -> Iterator[Path]:
    """Yield a block device that completes each request after ``latency`` microseconds, at once for 0."""
    options = ["nr_devices=1", "gb=1", "queue_mode=2"]
    options += ["irqmode=2", f"completion_nsec={latency * 1000}"] if latency else ["irqmode=0"]
    options.append("submit_queues=2")  # a queue for each CPU, which also takes its interrupts
    subprocess.run(["modprobe", "null_blk", *options], check=True)
    try:
        yield Path("/dev/nullb0")
    finally:
        unload("null_blk")


def completed(device: Path) -> int:
    """Return how many reads and writes the kernel has completed (Documentation/block/stat.rst)."""
    fields = statistics(device)
    return fields[0] + fields[4]


def statistics(device: Path) -> list[int]:
    """Return the fields of the device's file stat."""
    return [int(field) for field in Path(f"/sys/block/{device.name}/stat").read_text().split()]
