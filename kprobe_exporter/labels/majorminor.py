"""``majorminor``: the number of a block device as ``8:1``, or as its name: ``sda1``."""

import os
import re
from pathlib import Path

from kprobe_exporter.labels._text import printable, unsigned
from kprobe_exporter.model.values import Decoder, Value

MINOR_BITS = 20
"""MINORBITS of include/linux/kdev_t.h."""

WRITTEN = re.compile(rb"([0-9]{1,4})[,:]([0-9]{1,7})")
"""As the block events print it, ``8,1``, and as sysfs does."""


def decoder(options: object, devices: Path = Path("/sys/dev/block")) -> Decoder:
    """Of the kernel's own ``dev_t``: 12 bits of major number, 20 of minor, other than stat(2) has them.

    With ``decode: {majorminor: name}`` the device's name, as /proc/diskstats has it (``sda1``,
    ``dm-0``, ``cciss/c0d0``); the numbers where sysfs, in ``devices``, knows none.
    """
    if options not in (None, "name"):
        raise ValueError(
            "the decoder majorminor takes no option but name: write 'decode: majorminor', or"
            " {majorminor: name}"
        )

    def numbers(value: Value) -> str | None:
        written = WRITTEN.fullmatch(value) if isinstance(value, bytes) else None
        if written is not None:
            major, minor = int(written[1]), int(written[2])
            return f"{major}:{minor}" if major < 1 << 32 - MINOR_BITS and minor < 1 << MINOR_BITS else None
        device = unsigned(value, 32)
        return None if device is None else f"{device >> MINOR_BITS}:{device % (1 << MINOR_BITS)}"

    def name(value: Value) -> str | None:
        found = numbers(value)
        return None if found is None else _name(devices, found) or found

    return numbers if options is None else name


def _name(devices: Path, numbers: str) -> str | None:
    """The last part of where the device's link leads; sysfs has ``!`` for a name's ``/``."""
    try:
        target = (devices / numbers).readlink()
    except OSError:
        return None
    return printable(os.fsencode(target.name).replace(b"!", b"/"))
