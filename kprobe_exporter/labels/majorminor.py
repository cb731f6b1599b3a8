"""``majorminor``: a block device's number as ``8:1``, or as the device's name: ``sda1``."""

import os
import re
from pathlib import Path

from kprobe_exporter.labels._text import printable, unsigned
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

MINOR_BITS = 20  # MINORBITS of include/linux/kdev_t.h

WRITTEN = re.compile(rb"([0-9]{1,4})[,:]([0-9]{1,7})")
"""``8,1``, as the block events print it, or ``8:1``, as sysfs does."""


def decoder(options: object, devices: Path = Path("/sys/dev/block")) -> Decoder:
    """Make a decoder of the kernel's own ``dev_t``: 12 bits of major, 20 of minor, unlike stat(2)'s.

    For ``decode: {majorminor: name}``, it gives the device's name in /proc/diskstats (``sda1``, ``dm-0``,
    ``cciss/c0d0``), or the numbers if sysfs, in ``devices``, has no name.
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
    """Return the last part of the device's link target. sysfs writes a ``/`` in a name as ``!``."""
    try:
        target = (devices / numbers).readlink()
    except OSError:
        return None
    return printable(os.fsencode(target.name).replace(b"!", b"/"))
