"""Configuration files on disk: finds the files of a path, checks who may write them, reads them."""

import os
import stat
from pathlib import Path

from kprobe_exporter.util.regular_file import NotRegularError, cannot_be_read, open_regular

DEFAULT = Path(__file__).with_name("default.yaml")
"""The packaged configuration, which the agent uses if it is given none."""

MAX_BYTES = 1 << 20


class Unusable(Exception):
    """A path cannot be used. The message is a sentence for the user."""


def expand(path: Path) -> list[Path]:
    """Return the files of a path: the path itself, or a directory's ``*.yaml`` and ``*.yml``, sorted.

    Hidden files are skipped: editors' locks, and the version directories of a Kubernetes volume.
    Raises Unusable.
    """
    try:
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode):
            return [path]
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            # A ConfigMap's directory in a pod has mode 0777, but is mounted read-only: ignore the write bits.
            status = os.stat_result((status.st_mode & ~0o022, *status[1:]))
        _refuse_writable(status, "directory")
        files = sorted(path.iterdir())
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise Unusable(cannot_be_read(error)) from None
    shown = [file for file in files if not file.name.startswith(".")]
    if found := [file for file in shown if file.suffix in (".yaml", ".yml")]:
        return found
    raise Unusable("there is no *.yaml or *.yml in this directory")


def read(path: Path) -> bytes:
    """Return the content of one configuration file. Raises Unusable; never waits for a writer."""
    try:
        with open_regular(path) as file:
            # The packaged file is exempt: a user who can write it can write this code as well, for
            # example if root runs a checkout that was made under a user's umask.
            if path != DEFAULT:
                _refuse_writable(os.fstat(file.fileno()), "file")
            content = file.read(MAX_BYTES + 1)
    except NotRegularError as error:
        raise Unusable(f"{error}: a configuration is read from a file on disk") from None
    except (OSError, ValueError) as error:
        raise Unusable(cannot_be_read(error)) from None
    if len(content) > MAX_BYTES:
        raise Unusable(f"is larger than {MAX_BYTES >> 20} MiB: no configuration needs so much")
    return content


def _refuse_writable(status: os.stat_result, what: str) -> None:
    """Raise Unusable if an untrusted user could write the file, and so control what root does."""
    trusted = {0, os.geteuid()}
    if status.st_uid not in trusted:
        raise Unusable(
            f"this {what} belongs to user {status.st_uid}, who is neither root nor the one who runs"
            " this: chown it to root"
        )
    if status.st_mode & stat.S_IWOTH:
        raise Unusable(f"others may write this {what}: chmod o-w it")
    if status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        raise Unusable(f"the group {status.st_gid} may write this {what}: chmod g-w it")
