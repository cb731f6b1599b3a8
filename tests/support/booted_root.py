"""A bare Debian whose own systemd runs as its first process, without a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.debian_root import Root
from tests.support.systemd import UNIT, Systemd, running_manager

# The root must be a mount point and the root of its namespace: systemd moves it for units that it confines.
BOOT = """
set -e
mount --make-rprivate /
ip link set lo up
mount --bind "$3" "$3"
cd "$3"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tracefs nodev sys/kernel/tracing
mount --bind "$1" sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p run/systemd/system
cp -r "$2/." run/systemd/system
pivot_root . mnt
umount --lazy /mnt
export HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec /lib/systemd/systemd --system --unit=quiet.target --log-target=console --show-status=no
"""

DROP_IN = """
[Unit]
DefaultDependencies=no
[Service]
RestartSec=1h
"""
"""The root boots without the targets of a real machine. An agent that is killed is not started again."""


@contextmanager
def booted(root: Root, directory: Path) -> Iterator[Systemd]:
    """Boot a root that has the package systemd; ``directory`` is for what this needs outside of it."""
    files = directory / "units"
    (files / f"{UNIT}.d").mkdir(parents=True)
    (files / f"{UNIT}.d/here.conf").write_text(DROP_IN)
    (files / "quiet.target").write_text("[Unit]\nDefaultDependencies=no\n")
    with running_manager(directory, files, root.directory, script=BOOT, namespaces=["--net"]) as manager:
        yield manager


def shell(manager: Systemd, command: str) -> str:
    """Run a line of shell as root in the booted Debian; return its output, standard error included.

    Raises AssertionError with the output if it fails.
    """
    environment = {
        "HOME": "/root",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    words = [f"{name}={value}" for name, value in environment.items()]
    done = manager.inside("env", "-i", *words, "sh", "-c", f"exec 2>&1; cd /root; {command}")
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
