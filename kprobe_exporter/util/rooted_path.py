"""Resolves a path as the kernel does, but never out of a root directory that it has entered.

The kernel resolves an absolute symbolic link from the root of the process that follows it. So a link inside
a container, followed through ``/proc/PID/root``, would lead to the host's file. Here it stays in the
container, as with RESOLVE_IN_ROOT of openat2(2), which kernels before 5.6 lack.
"""

import errno
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, BinaryIO, NamedTuple, TypeVar

from kprobe_exporter.util.deadline import NotBegun, answered, process_root
from kprobe_exporter.util.file_access import NotRegularError

T = TypeVar("T")

MOST_LINKS = 40
"""Symbolic links in one path, as the kernel's MAXSYMLINKS."""

MOST_STEPS = 1024
"""Components in all: links may lead through directories back and forth. Each takes 5 µs."""

MOST_DEPTH = 128
"""Directories that are open at once, one in the other."""

PROC_SUPER_MAGIC = 0x9FA0
"""include/uapi/linux/magic.h"""


class Entry(NamedTuple):
    """A component that was looked up: ``name`` in ``directory``, of which ``descriptor`` is open."""

    directory: str
    descriptor: int
    name: str
    status: os.stat_result


def open_rooted(path: str, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, and ValueError for a path that holds a NUL.

    A device or a FIFO is never opened: it raises NotRegularError.
    """
    with walked(path) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularError("is not a regular file")
        return open(os.open(itself(descriptor), os.O_RDONLY | os.O_CLOEXEC), "rb", buffering)


def status(path: str) -> os.stat_result:
    """Return the status of the file that ``open_rooted`` opens. Raises OSError and ValueError."""
    with walked(path) as descriptor:
        return os.fstat(descriptor)


def itself(descriptor: int) -> str:
    """Return a path that names an open file itself, even if the path by which it was opened names another one
    now."""
    return f"/proc/self/fd/{descriptor}"


@contextmanager
def walked(path: str, visit: Callable[[Entry], object] = lambda _: None) -> Iterator[int]:
    """Yield an O_PATH descriptor of what the path names, after calling ``visit`` for each component.

    Raises OSError as open(2) does, and ValueError for a path that holds a NUL.
    """
    with closing(_Walk(path)) as walk:
        while walk.left:
            walk.step(visit)
        yield walk.opened[-1]


class _Walk:
    """The directories that are open, from the present root on, and the components that are left."""

    def __init__(self, path: str) -> None:
        self.left = deque(os.path.join(os.getcwd(), path).split("/"))  # noqa: PTH109, PTH118 - no Path drops "."
        self._path, self._links, self._steps = path, 0, 0
        self._names, self.opened = ["/"], [_open("/", os.O_DIRECTORY)]

    def close(self) -> None:
        self._drop(slice(None))

    def step(self, visit: Callable[[Entry], object]) -> None:
        """Look up the next component."""
        name = self.left.popleft()
        self._steps += 1
        if name == "..":
            # The parent of a directory that was moved meanwhile may be outside of the root.
            self._drop(slice(max(1, len(self.opened) - 1), None))
        if name in ("", ".", ".."):
            return
        if len(self.opened) > MOST_DEPTH or self._steps > MOST_STEPS:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), self._path)
        with ExitStack() as stack:
            found = self._look_up(name)
            stack.callback(os.close, found)
            entry = Entry(self._names[-1], self.opened[-1], name, os.fstat(found))
            visit(entry)
            if stat.S_ISLNK(entry.status.st_mode):
                self._follow(entry, found)
            else:
                self._enter(name, found)
                stack.pop_all()

    def _look_up(self, name: str) -> int:
        try:
            # With O_DIRECTORY the kernel mounts what is mounted on demand.
            return _open(name, os.O_NOFOLLOW | os.O_DIRECTORY, self.opened[-1])
        except NotADirectoryError:
            return _open(name, os.O_NOFOLLOW, self.opened[-1])

    def _follow(self, entry: Entry, link: int) -> None:
        self._links += 1
        if self._links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        _require_followable(os.fstat(entry.descriptor), entry.status, self._path)
        if on_proc(link):
            # The text of such a link may name another file than the one to which the kernel goes.
            target = _open(entry.name, 0, entry.descriptor)
            self._enter(entry.name, target)
            if stat.S_ISDIR(os.fstat(target).st_mode) and not on_proc(target):
                self._drop(slice(len(self.opened) - 1))  # it is the root from here on
            return
        text = os.readlink("", dir_fd=link)
        if text.startswith("/"):
            self._drop(slice(1, None))
        self.left.extendleft(reversed(text.split("/")))

    def _enter(self, name: str, descriptor: int) -> None:
        self.opened.append(descriptor)
        self._names.append(os.path.join(self._names[-1], name))  # noqa: PTH118 - text for messages

    def _drop(self, part: slice) -> None:
        for descriptor in self.opened[part]:
            os.close(descriptor)
        del self.opened[part], self._names[part]


def _open(name: str, flags: int, directory: int | None = None) -> int:
    return os.open(name, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=directory)


def on_proc(descriptor: int) -> bool:
    """Return whether an open file is one of procfs, whose links lead where their text does not."""
    return file_system(descriptor) == PROC_SUPER_MAGIC


def file_system(descriptor: int) -> int | None:
    """Return the f_type of the file system without a disk on which an open file is; None if it has a disk."""
    if os.major(os.fstat(descriptor).st_dev):
        return None
    import ctypes  # noqa: PLC0415 - most paths have no link on such a file system

    buffer = ctypes.create_string_buffer(256)  # struct statfs, which begins with f_type
    if ctypes.CDLL(None).fstatfs(descriptor, buffer) != 0:
        return None  # as 9p for a link; procfs never fails here (simple_statfs() in fs/libfs.c)
    width = ctypes.sizeof(ctypes.c_long)
    return int.from_bytes(buffer.raw[:width], sys.byteorder)


def _require_followable(directory: os.stat_result, link: os.stat_result, path: str) -> None:
    """Refuse what fs.protected_symlinks refuses: links of other users in /tmp and the like (fs/namei.c)."""
    shared = directory.st_mode & stat.S_ISVTX and directory.st_mode & stat.S_IWOTH
    if shared and link.st_uid not in (os.geteuid(), directory.st_uid):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)


class ProbedFiles:
    """The files in which probes are planned, open until the probes are in the kernel. Not thread-safe.

    Their file systems may hang: ``ask`` asks about them in another thread.

    So the parsed file is the probed one: the kernel is given the descriptor, not the path, which may name
    another file by the time at which the kernel looks. Each path is opened once, until ``close``. ``parsed``
    has what the parser found, by device and inode: see ``elf.reader.opened``. ``libraries`` has the paths of
    libraries that were named by their sonames.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[BinaryIO, tuple[int, int]]] = {}  # with device and inode
        self.parsed: dict[tuple[int, int], Any] = {}
        self.libraries: dict[str, str] = {}
        self._within: dict[str | None, ProbedFiles] = {}

    def ask(self, path: str, work: "Callable[[ProbedFiles], T]") -> T:
        """Return what ``work`` finds out about a path with the files that are open in the same root.

        Raises TimeoutError if the file system does not answer. A thread then still uses these files, so they
        are given up, and the thread closes them.
        """
        root = process_root(path)
        files = self._within.setdefault(root, ProbedFiles())

        def asked() -> T:
            try:
                return work(files)
            finally:
                if self._within.get(root) is not files:
                    files.close()

        try:
            return answered(path, asked)
        except NotBegun:
            raise
        except TimeoutError:
            self._within.pop(root, None)
            raise

    def open(self, path: str) -> BinaryIO:
        """Return the file at its first byte; it is not to be closed. Raises OSError and ValueError.

        It has no buffer, which would hide that the file changes.
        """
        if path not in self._open:
            file = open_rooted(path, buffering=0)
            status = os.fstat(file.fileno())
            self._open[path] = file, (status.st_dev, status.st_ino)
        file, _ = self._open[path]
        file.seek(0)
        return file

    def path(self, path: str, inode: tuple[int, int] | None) -> str | None:
        """Return a path by which the kernel finds the open file; None if it is not the one with ``inode``.

        No file system is asked about a file that is open. Raises OSError and ValueError.
        """
        root = process_root(path)
        if root not in self._within or path not in self._within[root]._open:
            self.ask(path, lambda files: files.open(path))
        file, found = self._within[root]._open[path]
        return itself(file.fileno()) if inode in (None, found) else None

    def close(self) -> None:
        """Close all files, and drop what was found in them."""
        for files in self._within.values():
            files.close()
        self._within.clear()
        for file, _ in self._open.values():
            file.close()
        self._open.clear()
        self.parsed.clear()
        self.libraries.clear()
