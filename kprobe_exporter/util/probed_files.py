"""The files in which probes are planned, open until the probes are in the kernel.

What was parsed is then what is probed: the kernel is given the descriptor, not the path, which may name
another file by the time at which the kernel looks.
"""

import os
from typing import BinaryIO

from kprobe_exporter.util.rooted_path import itself, open_rooted


class ProbedFiles:
    """Opens each path once, until ``close``. Not thread-safe."""

    def __init__(self) -> None:
        self._open: dict[str, BinaryIO] = {}
        self._refused: dict[str, str] = {}

    def open(self, path: str) -> BinaryIO:
        """Return the file at its first byte; it is not to be closed. Raises OSError and ValueError."""
        if path not in self._open:
            self._open[path] = open_rooted(path)
        self._open[path].seek(0)
        return self._open[path]

    def path(self, path: str, inode: tuple[int, int] | None) -> str | None:
        """Return a path by which the kernel finds the open file; None if it is not the one with ``inode``.

        Raises OSError and ValueError.
        """
        descriptor = self.open(path).fileno()
        status = os.fstat(descriptor)
        if inode is not None and (status.st_dev, status.st_ino) != inode:
            return None
        return itself(descriptor)

    def refuse(self, path: str, reason: str) -> None:
        """Remember that reading this file is too much work."""
        self._refused[path] = reason

    def refused(self, path: str) -> str | None:
        return self._refused.get(path)

    def close(self) -> None:
        """Close all files, and forget what was refused."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._refused.clear()
