"""Opens files whose paths come from users."""

import os
import stat
from typing import BinaryIO


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
        raise NotRegularError("is no regular file")
    return open(descriptor, "rb")


def cannot_be_read(error: OSError | ValueError) -> str:
    """Return why a file could not be opened or read, as a clause after the file's name."""
    if isinstance(error, NotRegularError):
        return str(error)
    return f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"
