"""File systems that are mounted for a test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(where: Path, *options: str, source: str | Path = "none") -> Iterator[Path]:
    """Mount a file system while the context lasts."""
    subprocess.run(["mount", *options, source, where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)
