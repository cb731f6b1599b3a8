"""A fake tracefs that is a table of files."""

import errno
import os
from typing import Any

import pytest


class Table:
    """Files by path. A write is noted, and raises the error that ``refused`` has for its path."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.written: list[tuple[str, str]] = []
        self.refused: dict[str, int] = {}

    def read(self, path: str) -> bytes:
        try:
            return self.files[path]
        except KeyError:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def write(self, path: str, text: str) -> None:
        self.written.append((path, text))
        if code := self.refused.get(path):
            raise OSError(code, os.strerror(code), path)

    def truncate(self, path: str) -> None:
        self.write(path, "")

    def exists(self, path: str) -> bool:
        return path in self.files

    def names(self, path: str) -> list[str]:
        start = f"{path}/"
        return sorted(
            {name.removeprefix(start).split("/")[0] for name in self.files if name.startswith(start)}
        )

    def unsupported(self, path: str) -> Any:
        raise NotImplementedError

    mkdir = rmdir = open_pipe = open_marker = lock = unsupported


@pytest.fixture
def table() -> Table:
    return Table()


def entry(command: str, caret: int, text: str = "Unknown type is specified") -> str:
    """Return an entry as tracing_log_show() of kernel/trace/trace.c prints it."""
    head = f"[   13.864560] trace_kprobe: error: {text}\n"
    return f"{head}  Command: {command}\n{' ' * (len('  Command: ') + caret)}^\n"
