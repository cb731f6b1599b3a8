"""``user``: a user id as its name in /etc/passwd, such as ``root``; the number if it has no name."""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_ISREG

from kprobe_exporter.labels._text import printable, unsigned, without_options
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

UNSET = 2**32 - 1  # INVALID_UID of include/linux/uidgid.h, the id of no user, such as a daemon's login uid
LOOK_PAUSE = 10.0  # seconds between two checks for changes of the file
MOST_BYTES = 4 << 20
LONGEST_NAME = 256  # bytes, as sysconf(_SC_LOGIN_NAME_MAX) has it

LINE = re.compile(rb"^([^:\n#+-][^:\n]{0,%d}):[^:\n]*:([0-9]{1,10}):" % (LONGEST_NAME - 1), re.MULTILINE)
"""Name, password and user id. Lines with + or - are for the name service, those with # are comments."""


class Users:
    """Names by user id from a file like /etc/passwd, read again after it changes. Not thread-safe.

    The name service is not used, as it may wait for a network. A file that cannot be read has no users.
    """

    def __init__(self, passwd: Path, clock: Callable[[], float]) -> None:
        self._passwd, self._clock = passwd, clock
        self._looked = float("-inf")
        self._version: tuple[int, ...] = ()
        self._names: Mapping[int, str] = {}

    def name(self, uid: int) -> str | None:
        """Return the first name that the file has for the id."""
        if self._clock() - self._looked >= LOOK_PAUSE:
            self._looked = self._clock()
            self._look_again()
        return self._names.get(uid)

    def _look_again(self) -> None:
        try:
            found = self._passwd.stat()
            version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if version != self._version:
                self._names = _parse(self._passwd) if S_ISREG(found.st_mode) else {}
                self._version = version
        except OSError:
            self._names, self._version = {}, ()


def _parse(passwd: Path) -> Mapping[int, str]:
    with passwd.open("rb") as file:
        text = file.read(MOST_BYTES)
    names: dict[int, str] = {}
    for name, uid in LINE.findall(text):
        names.setdefault(int(uid), printable(name))
    return names


def decoder(
    options: object, passwd: Path = Path("/etc/passwd"), clock: Callable[[], float] = time.monotonic
) -> Decoder:
    """Make the decoder, which takes no options. In a container, mount the host's file over the agent's.

    An id without a name there is shown as a number; 4294967295, the id of no user, is ``unset``.
    """
    users = Users(passwd, clock)

    def decode(value: Value) -> str | None:
        uid = unsigned(value, 32)
        if uid is None:
            return None
        return "unset" if uid == UNSET else users.name(uid) or str(uid)

    return without_options("user", decode)(options)
