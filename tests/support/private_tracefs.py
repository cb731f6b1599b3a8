"""A tracefs for this process and its children, in a mount namespace that ends with them."""

import ctypes
import functools
import os
from pathlib import Path

TRACEFS = Path("/sys/kernel/tracing")
CLONE_NEWNS = 0x00020000  # include/uapi/linux/sched.h
MS_REC, MS_PRIVATE = 0x4000, 0x40000  # include/uapi/linux/mount.h


@functools.cache
def provide() -> str:
    """Enter a mount namespace with a tracefs. Returns the reason why that is impossible, or an empty string.

    The first call must precede the start of other threads, since those stay in the old namespace.
    """
    if os.geteuid() != 0:
        return "only root can mount tracefs"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        return f"no mount namespace: {os.strerror(ctypes.get_errno())}"
    # systemd makes mounts shared: without MS_PRIVATE they would propagate to the old namespace.
    if libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return f"mounts cannot be private: {os.strerror(ctypes.get_errno())}"
    if not (TRACEFS / "README").exists() and libc.mount(b"nodev", bytes(TRACEFS), b"tracefs", 0, None) != 0:
        return f"tracefs cannot be mounted: {os.strerror(ctypes.get_errno())}"
    return ""
