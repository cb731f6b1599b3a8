"""A network of its own for this thread and what it starts, with as many addresses as a test needs."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
"""include/uapi/linux/sched.h"""

LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def own_network(prefix: str) -> Iterator[None]:
    """Give this thread a network of loopback alone, in which each address of an IPv6 prefix is its own."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _check(LIBC.unshare(CLONE_NEWNET))
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "-6", "route", "add", "local", prefix, "dev", "lo"], check=True)
        Path("/proc/sys/net/ipv6/ip_nonlocal_bind").write_text("1")
        yield
    finally:
        _check(LIBC.setns(before, CLONE_NEWNET))
        os.close(before)


def _check(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
