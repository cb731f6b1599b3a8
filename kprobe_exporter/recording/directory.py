"""The directory of recordings: files written as a whole, within a budget, and never through links."""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple, cast

NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}-\d{8}T\d{6}\.\d{3}Z\.(?:dat|pftrace)")
"""The name of a file: the recording, the time of its end, and the format."""

PART = re.compile(r"\.[0-9a-f]{16}\.part")
"""The name of a file that is being written."""


class TooLarge(Exception):
    """One file is larger than all files may be."""


class RecordedFile(NamedTuple):
    """A finished file: its name, size in bytes, and time in seconds since the epoch."""

    name: str
    size: int
    time: float


class Directory:
    """A directory in which at most ``max_files`` of ``max_bytes`` in all stay: older ones make room.

    Only files with names of recordings are counted, removed and served. Every method opens the directory
    again, because another process may have replaced it, and raises OSError, also if it is a link. It may be
    used by any thread; one at a time writes.
    """

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        self.path, self._max_bytes, self._max_files = path, max_bytes, max_files

    def prepare(self) -> None:
        """Make the directory if it is missing, for its owner alone, and remove unfinished files."""
        with suppress(FileExistsError):
            self.path.mkdir(0o700, parents=True)
        with self._opened() as directory:
            for name in os.listdir(directory):
                if PART.fullmatch(name):
                    os.unlink(name, dir_fd=directory)

    def files(self) -> list[RecordedFile]:
        """Return the finished files, the oldest first."""
        with self._opened() as directory:
            return _files(directory)

    def read(self, name: str) -> bytes:
        """Return the content of a finished file. Raises FileNotFoundError for any other name."""
        if not NAME.fullmatch(name):
            raise FileNotFoundError(name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._opened() as directory, open(os.open(name, flags, dir_fd=directory), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileNotFoundError(name)
            return file.read()

    def temporary(self) -> BinaryIO:
        """Return a file without a name, which goes when it is closed."""
        with self._opened() as directory:
            return cast("BinaryIO", TemporaryFile(dir=f"/proc/self/fd/{directory}"))

    @contextmanager
    def written(self, name: str) -> Iterator[BinaryIO]:
        """Yield a file that gets this name when the block ends without an error. Raises TooLarge.

        Until then it is outside the budget.
        """
        assert NAME.fullmatch(name)
        with self._opened() as directory:
            part = f".{secrets.token_hex(8)}.part"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with open(os.open(part, flags, 0o600, dir_fd=directory), "w+b") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                    self._make_room(directory, os.fstat(file.fileno()).st_size)
                os.rename(part, name, src_dir_fd=directory, dst_dir_fd=directory)
                os.fsync(directory)
            except BaseException:
                with suppress(OSError):
                    os.unlink(part, dir_fd=directory)
                raise

    def _make_room(self, directory: int, size: int) -> None:
        if size > self._max_bytes:
            raise TooLarge(f"it has {size} bytes, and all recordings may have {self._max_bytes}")
        there = _files(directory)
        while there and (
            len(there) >= self._max_files or sum(one.size for one in there) + size > self._max_bytes
        ):
            os.unlink(there.pop(0).name, dir_fd=directory)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield directory
        finally:
            os.close(directory)


def _files(directory: int) -> list[RecordedFile]:
    found = []
    for name in filter(NAME.fullmatch, os.listdir(directory)):
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                found.append(RecordedFile(name, status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: (file.time, file.name))
