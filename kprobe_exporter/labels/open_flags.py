"""``open_flags``: the flags of open(2) by their names: ``O_WRONLY|O_CREAT|O_TRUNC``."""

import platform
from collections.abc import Callable, Mapping

from kprobe_exporter.labels._text import unsigned, without_options
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

ACCESS = ("O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE")
"""The lowest two bits. With both the file is opened for ioctl alone."""

FLAGS: Mapping[str, int] = {
    "O_CREAT": 0o100,
    "O_EXCL": 0o200,
    "O_NOCTTY": 0o400,
    "O_TRUNC": 0o1000,
    "O_APPEND": 0o2000,
    "O_NONBLOCK": 0o4000,
    "O_SYNC": 0o4010000,
    "O_DSYNC": 0o10000,
    "FASYNC": 0o20000,
    "O_DIRECT": 0o40000,
    "O_LARGEFILE": 0o100000,
    "O_TMPFILE": 0o20200000,
    "O_DIRECTORY": 0o200000,
    "O_NOFOLLOW": 0o400000,
    "O_NOATIME": 0o1000000,
    "O_CLOEXEC": 0o2000000,
    "O_PATH": 0o10000000,
}
"""include/uapi/asm-generic/fcntl.h, for x86 and RISC-V. A name of several bits comes before those of one."""

ARM = {"O_DIRECTORY": 0o40000, "O_NOFOLLOW": 0o100000, "O_DIRECT": 0o200000, "O_LARGEFILE": 0o400000}
"""arch/arm64/include/uapi/asm/fcntl.h."""


def decode_for(machine: str) -> Decoder:
    """Return the decoder for an architecture as ``uname -m`` names it. Other bits are a number at the end."""
    flags = {**FLAGS, **ARM, "O_TMPFILE": 0o20040000} if machine == "aarch64" else FLAGS

    def decode(value: Value) -> str | None:
        left = unsigned(value, 64)
        if left is None:
            return None
        names = [ACCESS[left & 3]]
        left &= ~3
        for name, bits in flags.items():
            if left & bits == bits:
                names.append(name)
                left &= ~bits
        return "|".join([*names, hex(left)] if left else names)

    return decode


decoder: Callable[[object], Decoder] = without_options("open_flags", decode_for(platform.machine()))
