"""Unloading a kernel module, whose device udev may still have open."""

import subprocess

from tests.support.patience import eventually


def unload(module: str) -> None:
    """Unload the module; while it is in use, try again."""
    eventually(lambda: subprocess.run(["rmmod", "--syslog", module], check=False).returncode == 0)
