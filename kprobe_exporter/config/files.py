"""Configuration files on disk: finds the files of a path, and reads them.

A file that an untrusted user may change, and so control what root does, is refused.
"""

import os
import stat
from pathlib import Path

from kprobe_exporter.util.file_access import NotRegularError, cannot_be_read, open_regular, who_may_change

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
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        # A ConfigMap's directory in a pod has mode 0777, but is mounted read-only.
        read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        if (who := who_may_change(path, "directory", read_only=read_only)) is not None:
            raise Unusable(who)
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
            if path != DEFAULT and (who := who_may_change(file.fileno())) is not None:
                raise Unusable(who)
            content = file.read(MAX_BYTES + 1)
    except NotRegularError as error:
        raise Unusable(f"{error}: a configuration is read from a file on disk") from None
    except (OSError, ValueError) as error:
        raise Unusable(cannot_be_read(error)) from None
    if len(content) > MAX_BYTES:
        raise Unusable(f"is larger than {MAX_BYTES >> 20} MiB: no configuration needs so much")
    return content
