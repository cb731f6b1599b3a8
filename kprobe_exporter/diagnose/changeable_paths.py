"""Paths of probed programs in which users other than root may put another file."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from kprobe_exporter.config.model import Probe
from kprobe_exporter.elf import library_path
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.util.file_access import ACCESS
from kprobe_exporter.util.rooted_path import Entry, itself, on_proc, walked


def changeable(probes: Iterable[Probe]) -> Iterator[str]:
    """Yield a warning for each probe in a file that others than root may replace or write."""
    for probe in probes:
        if probe.within is not None:
            continue  # who made the container chooses its files
        paths = (one.target.path for attach in probe.attach for one in attach.single)
        for path in dict.fromkeys(path for path in paths if path):
            if found := writers(path):
                yield (
                    f"warning: the probe '{probe.name}': others than root choose which code {path} names: "
                    f"{'; '.join(found)}: only root should be able to write the file and the directories on "
                    "its path"
                )


def writers(path: str) -> list[str]:
    """Return who besides root may write a directory of the path, or the file; nothing where none is seen.

    A soname's path is that of its library.
    """
    found: dict[str, None] = {}
    try:
        path = library_path(path)
    except GrammarError:
        return []

    def visit(entry: Entry) -> None:
        directory = os.fstat(entry.descriptor)
        # In a directory like /tmp others cannot replace what belongs to root.
        keeps = bool(directory.st_mode & stat.S_ISVTX) and entry.status.st_uid == 0
        if who := None if on_proc(entry.descriptor) else _who(directory, entry.descriptor, keeps=keeps):
            found[f"{entry.directory} {who}"] = None

    # That there is no such file is said where the probe is planned.
    with suppress(OSError, ValueError), walked(path, visit) as last:
        if who := _who(os.fstat(last), last):
            found[f"{path} {who}"] = None
    return list(found)


def _who(status: os.stat_result, descriptor: int, *, keeps: bool = False) -> str | None:
    if status.st_uid != 0:
        return f"belongs to the user {status.st_uid}"
    if keeps:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "may be written by all users"
    if status.st_mode & stat.S_IWGRP:  # with an access control list, these bits are its mask
        if status.st_gid != 0:
            return f"may be written by the group {status.st_gid}"
        with suppress(OSError):
            if ACCESS in os.listxattr(itself(descriptor)):
                return "may be written by those in its access control list"
    return None
