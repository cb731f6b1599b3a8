"""The tracked files of this checkout, and archives that do not depend on where and when they are made."""

import gzip
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from release.targets import ROOT, ReleaseError


def epoch() -> int:
    """The time that every file gets: SOURCE_DATE_EPOCH, or else that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given if given is not None else git("log", "-1", "--format=%ct"))


def revision() -> str:
    """The commit, with "-dirty" if tracked files differ from it."""
    return git("describe", "--always", "--abbrev=40", "--dirty", "--match=")


def copy_tracked(into: Path) -> None:
    """Copy the tracked files as they are in the checkout, and normalize modes and times."""
    for name in git("ls-files", "-z").split("\0"):
        source, copy = ROOT / name, into / name
        if not name or not source.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy, follow_symlinks=False)
    normalize(into)


def normalize(tree: Path) -> None:
    """Give everything below a directory the mode 755 or 644 and the time of the epoch."""
    when = epoch()
    for path in (tree, *in_order(tree)):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (when, when), follow_symlinks=False)


def in_order(tree: Path) -> Iterator[Path]:
    """Everything below a directory, each directory before its content, sorted by name."""
    return iter(sorted(tree.rglob("*")))


def pack(tree: Path, archive: Path, prefix: str = "") -> None:
    """Write a .tar or .tar.gz of a normalized directory, owned by root, with ``prefix`` before each name."""
    with archive.open("wb") as file, ExitStack() as stack:
        out: BinaryIO = file
        if archive.suffix == ".gz":
            # Without a name and a time in its header.
            compressed = gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=0)
            out = cast("BinaryIO", stack.enter_context(compressed))
        tar = stack.enter_context(tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT))
        for path in in_order(tree):
            tar.add(path, prefix + path.relative_to(tree).as_posix(), recursive=False, filter=_by_root)


def _by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def git(*arguments: str, root: Path = ROOT) -> str:
    """The output of git in a checkout. Raises ReleaseError, with what git said."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()
