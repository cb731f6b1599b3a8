"""A file system that never answers, as NFS without its server: FUSE whose server answers no request."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MNT_FORCE, MNT_DETACH = 1, 2
"""include/linux/fs.h. By force, what hangs gets an error (fuse_umount_begin() in fs/fuse/inode.c)."""


@contextmanager
def hanging(where: Path) -> Iterator[None]:
    """Let all that looks into this directory hang while the context lasts."""
    if not Path("/dev/fuse").exists():
        subprocess.run(["modprobe", "fuse"], check=True)
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
        _check(libc.mount(b"hanging", bytes(where), b"fuse", 0, options.encode()))
        try:
            yield
        finally:
            _check(libc.umount2(bytes(where), MNT_FORCE | MNT_DETACH))
    finally:
        os.close(server)


def _check(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
