"""A kernel module to load and unload, and unloading one whose device udev may still have open."""

import subprocess
from pathlib import Path

from tests.support.patience import eventually

MODULE, FUNCTION = "zram", "disksize_show"
"""Every kernel package of Debian has the module, which is not loaded automatically."""


def reads_of_the_size(times: int) -> None:
    """Call FUNCTION."""
    for _ in range(times):
        Path("/sys/block/zram0/disksize").read_text()


def unload(module: str) -> None:
    """Unload the module; while it is in use, try again."""
    eventually(lambda: subprocess.run(["rmmod", "--syslog", module], check=False).returncode == 0)
