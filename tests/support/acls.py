"""POSIX ACLs of files, as the kernel stores them."""

import os
import struct
from pathlib import Path

from kprobe_exporter.util.file_access import ACCESS

OWNER, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NO_ID = 0xFFFFFFFF


def acl(*entries: tuple[int, int, int]) -> bytes:
    """Return an ACL with these entries, and those that each ACL has."""
    whole = sorted([(OWNER, 6, NO_ID), (OTHER, 0, NO_ID), *entries])
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in whole)


def let_another_write(path: Path) -> None:
    """Let the user 54321 write this file."""
    os.setxattr(path, ACCESS, acl((USER, 6, 54321), (GROUP_OBJ, 0, NO_ID), (MASK, 6, NO_ID)))
