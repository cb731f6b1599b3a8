"""``syscall``: the number of a system call as its name: ``openat``."""

import platform

from kprobe_exporter.labels._syscalls import TABLES
from kprobe_exporter.labels._text import number
from kprobe_exporter.model.values import Decoder, Value


def decoder(options: object) -> Decoder:
    """Of the running architecture, or of one that is named: ``decode: {syscall: aarch64}``.

    32-bit processes on a 64-bit kernel have numbers of their own, which an event does not tell:
    those get the name that the number has in the 64-bit table. Raises ValueError for an architecture
    whose table is not known.
    """
    architecture = platform.machine() if options is None else options
    if not isinstance(architecture, str) or architecture not in TABLES:
        *others, last = sorted(TABLES)
        raise ValueError(
            f"the decoder syscall has no table of {str(architecture)[:40]!r}: name an architecture that it"
            f" has, {', '.join(others)} or {last}, as in {{syscall: {last}}}"
        )
    names = TABLES[architecture]

    def decode(value: Value) -> str | None:
        found = number(value)
        return None if found is None else names.get(found)

    return decode
