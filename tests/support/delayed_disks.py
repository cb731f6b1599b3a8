"""Disks whose requests take longer than they need, by the kernel's dm-delay."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.support.patience import eventually

SLACK = 0.02
"""Seconds by which a delay may be shorter: it is counted in ticks, and a busy emulated machine makes up for
several late ones at once."""

WITHOUT_UDEV = {**os.environ, "DM_DISABLE_UDEV": "1"}


@contextmanager
def delayed(name: str, below: str, seconds: float) -> Iterator[str]:
    """Yield a device that passes each request on to the one below it after a delay."""
    status = Path(below).stat()
    block = Path(f"/sys/dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
    sectors = (block / "size").read_text().strip()
    table = f"0 {sectors} delay {below} 0 {1000 * seconds:.0f}"
    subprocess.run(["dmsetup", "create", name, "--table", table], check=True, env=WITHOUT_UDEV)
    try:
        yield f"/dev/mapper/{name}"
    finally:
        eventually(partial(succeeds, "dmsetup", "remove", name))


def succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, env=WITHOUT_UDEV).returncode == 0


@contextmanager
def disk() -> Iterator[str]:
    """Yield a disk of 1 GB whose requests end at once, with the kernel's module for delays loaded.

    Meanwhile udev reads no new disk: its reads of a slow one would keep that one busy for minutes.
    """
    with ExitStack() as stack:
        succeeds("udevadm", "control", "--stop-exec-queue")
        stack.callback(succeeds, "udevadm", "control", "--start-exec-queue")
        for module, *options in (("null_blk", "nr_devices=1", "gb=1"), ("dm_delay",)):
            subprocess.run(["modprobe", module, *options], check=True)
            stack.callback(eventually, partial(succeeds, "modprobe", "-qr", module))
        yield "/dev/nullb0"


def device_number(device: str) -> int:
    """Return a device's number as the kernel has it in its tracepoints (MKDEV of include/linux/kdev_t.h)."""
    found = Path(device).stat().st_rdev
    return os.major(found) << 20 | os.minor(found)
