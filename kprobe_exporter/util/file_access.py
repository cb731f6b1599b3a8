"""Opens files whose paths come from users; writes files as a whole; who may change or read a file, by its
mode and ACL (acl(5)).
"""

import os
import secrets
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

ACCESS = "system.posix_acl_access"

USER, GROUP_OBJ, GROUP, MASK = 0x02, 0x04, 0x08, 0x10
"""Tags of entries (include/uapi/linux/posix_acl.h): a user, the file's group, a group, the mask."""

WRITE, ALL = 0o2, 0o7


class NotRegularError(OSError):
    """The path leads to a directory, a device, a socket or a FIFO."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, without ever waiting for a writer.

    Raises OSError, NotRegularError among them, and ValueError for a path that holds a NUL.
    """
    # Without O_NONBLOCK, opening a FIFO that has no writer would block forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError("is not a regular file")
    return open(descriptor, "rb")


def cannot_be_read(error: OSError | ValueError) -> str:
    """Return why a file could not be opened or read, as a clause after the file's name."""
    if isinstance(error, NotRegularError):
        return str(error)
    return f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"


class AclEntry(NamedTuple):
    """An entry of an ACL, as struct posix_acl_xattr_entry has it."""

    tag: int
    permissions: int
    id: int


def parse_acl(value: bytes) -> list[AclEntry]:
    """Return the entries of an ACL's extended attribute: a version, 2, and 8 bytes for each entry."""
    if len(value) < 4 or len(value) % 8 != 4 or value[:4] != struct.pack("<I", 2):
        raise ValueError("this is no POSIX ACL of version 2")
    return [AclEntry(*entry) for entry in struct.iter_unpack("<HHI", value[4:])]


def who_may_change(file: int | Path, what: str = "file", *, read_only: bool = False) -> str | None:
    """Return who, besides root and the user of this process, may change a file or a directory.

    The text is a clause that ends with the remedy; None if there is no such user. If its file system is
    mounted ``read_only``, only the owner matters. Raises OSError.
    """
    status = os.fstat(file) if isinstance(file, int) else file.stat()
    trusted = {0, os.geteuid()}
    if status.st_uid not in trusted:
        return (
            f"this {what} belongs to user {status.st_uid}, who is neither root nor the one who runs this: "
            "chown it to root"
        )
    return None if read_only else next(_writers(file, status, trusted, what), None)


def all_may_read(descriptor: int) -> bool:
    """Return whether every user of the machine may read an open file."""
    return bool(os.fstat(descriptor).st_mode & stat.S_IROTH)


def _writers(file: int | Path, status: os.stat_result, trusted: set[int], what: str) -> Iterator[str]:
    """Yield a clause for each untrusted user or group that may write."""
    if status.st_mode & stat.S_IWOTH:
        yield f"others may write this {what}: chmod o-w it"
    entries = _acl(file)
    if not entries and status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        yield f"the group {status.st_gid} may write this {what}: chmod g-w it"
    # With an ACL the group's bits of the mode are the mask, which limits all but the owner and others.
    mask = next((entry.permissions for entry in entries if entry.tag == MASK), ALL)
    for tag, permissions, number in entries:
        if not permissions & mask & WRITE:
            continue
        if tag == USER and number not in trusted:
            yield f"an ACL lets user {number} write this {what}: setfacl -x u:{number} it"
        elif tag == GROUP and number != 0:
            yield f"an ACL lets the group {number} write this {what}: setfacl -x g:{number} it"
        elif tag == GROUP_OBJ and status.st_gid != 0:
            yield f"the group {status.st_gid} may write this {what}: setfacl -m g::r it"


def _acl(file: int | Path) -> list[AclEntry]:
    """Return the entries of a file's ACL; none if it has none, or if the file system knows none."""
    try:
        return parse_acl(os.getxattr(file, ACCESS))
    except (OSError, ValueError):
        return []


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, as ``replaced_whole`` does. Raises OSError."""
    with replaced_whole(path) as file:
        file.write(data)


@contextmanager
def replaced_whole(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of ``path`` when the block ends without an error. Raises OSError.

    The old file is not opened, so that no link of another user is followed, and a definitions file of the
    kernel is never truncated. The temporary name is random: no other user can prevent the writing by a file
    of that name. A ``private`` file is its owner's alone.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)
            yield file
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
