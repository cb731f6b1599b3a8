"""``syscall``: a system call's number as its name: ``openat``."""

import platform

from kprobe_exporter.labels._text import number
from kprobe_exporter.labels.syscall_numbers import TABLES
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value


def decoder(options: object) -> Decoder:
    """Make a decoder for the running architecture, or a named one: ``decode: {syscall: aarch64}``.

    32-bit processes on a 64-bit kernel use other numbers, but an event does not tell which process is a
    32-bit one: their calls get the names of the 64-bit table. Raises ValueError for an architecture
    without a table.
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
