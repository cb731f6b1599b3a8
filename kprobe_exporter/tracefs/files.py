"""The I/O interface of the tracefs package: its modules read and write files below tracefs through it."""

import errno
import fcntl
import os
import re
from pathlib import Path
from typing import NoReturn, Protocol

TRACEABLE = "available_filter_functions"
"""The file with one line, ``sym`` or ``sym [mod]``, for each function that ftrace can patch."""

TRUNCATED = re.compile(
    r"instances/\w+(?:\.threads|\.pairs)?/(?:events/[\w-]+/\w+/trigger|set_event(?:_notrace)?_pid)"
)
"""The files of an instance that may be opened with O_TRUNC."""


class Tracefs(Protocol):
    """The operations that the tracefs package needs of a mounted tracefs. Paths are relative to the mount.

    Every method raises the kernel's OSError unchanged; the caller knows what an errno means for each file.
    """

    def read(self, path: str) -> bytes: ...
    def write(self, path: str, text: str) -> None: ...
    def truncate(self, path: str) -> None: ...
    def exists(self, path: str) -> bool: ...
    def names(self, path: str) -> list[str]: ...
    def mkdir(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def open_pipe(self, path: str) -> int: ...
    def open_marker(self, path: str) -> int: ...
    def lock(self, path: str) -> int | None: ...


class MountedTracefs:
    """A tracefs mounted at ``root``. It is stateless, so threads may share it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __repr__(self) -> str:
        return f"MountedTracefs({str(self.root)!r})"

    def read(self, path: str) -> bytes:
        """Return the content of the whole file."""
        return (self.root / path).read_bytes()

    def write(self, path: str, text: str) -> None:
        """Append one command with one write(2).

        The file is not opened with O_TRUNC: this would delete the probes of all programs in a definitions
        file, and every trigger in a trigger file (kernel/trace/trace_dynevent.c, trace_events_trigger.c).
        Python's "a" mode does not work: it seeks to the end, which these files refuse with EINVAL.
        """
        fd = os.open(self.root / path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def truncate(self, path: str) -> None:
        """Open one of the TRUNCATED with O_TRUNC. Raises ValueError for any other file.

        All ids of a list go, or all hist triggers of an event and no others. The kernel waits once for each
        trigger where ``!hist:…`` waits twice, because it frees no parsed command (event_trigger_regex_open()
        of kernel/trace/trace_events_trigger.c).
        """
        if not TRUNCATED.fullmatch(path):
            raise ValueError(f"{path!r} must not be truncated")
        os.close(os.open(self.root / path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC))

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(self.root / path))

    def mkdir(self, path: str) -> None:
        (self.root / path).mkdir()

    def rmdir(self, path: str) -> None:
        (self.root / path).rmdir()

    def open_pipe(self, path: str) -> int:
        """Return a descriptor for non-blocking reads (``trace_pipe``); the caller closes it."""
        return os.open(self.root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def open_marker(self, path: str) -> int:
        """Return a descriptor for writes to a ``trace_marker``; the caller closes it."""
        return os.open(self.root / path, os.O_WRONLY | os.O_CLOEXEC)

    def lock(self, path: str) -> int | None:
        """Take an exclusive flock on a directory. Return its descriptor, or None if it is locked already.

        A flock on a tracefs directory works across containers and ends with the process, even by SIGKILL.
        The directory may be removed and made again between open and flock, which would lock the removed
        one. So the inodes are compared, and the open is repeated if they differ.
        """
        while True:
            fd = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), (self.root / path).stat()):
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)


class ReadOnlyTracefs(MountedTracefs):
    """A tracefs for reading only: every operation that would change something raises EROFS.

    ``open_pipe`` is one of them, because reading a pipe consumes events.
    """

    def _refuse(self, path: str, text: str = "") -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.root / path))

    write = truncate = mkdir = rmdir = open_pipe = open_marker = lock = _refuse
