"""Writes caches of the dynamic loader, as sysdeps/generic/dl-cache.h of glibc describes them."""

import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

ORDER = "<" if sys.byteorder == "little" else ">"
NATIVE = 2 if sys.byteorder == "little" else 3
X86_64, AARCH64, I386 = 0x0303, 0x0A03, 0x0003
SUBDIRECTORY = 1 << 62


class Entry(NamedTuple):
    """A library: its name, its path, its flags, and what it requires of the processor."""

    name: str
    path: str
    flags: int = X86_64
    hwcap: int = 0


def cache(entries: Sequence[Entry], subdirectories: Sequence[str] = (), *, endian: int = NATIVE) -> bytes:
    """Return a cache with these entries, and with an extension if there are ``subdirectories``."""
    strings, start = b"", 48 + 24 * len(entries)

    def add(text: str) -> int:
        nonlocal strings
        strings += text.encode() + b"\0"
        return start + len(strings) - len(text.encode()) - 1

    table = [
        struct.pack(f"{ORDER}iIIIQ", one.flags, add(one.name), add(one.path), 0, one.hwcap) for one in entries
    ]
    numbers = [add(one) for one in subdirectories]
    extension = -(start + len(strings)) % 4
    at = start + len(strings) + extension if subdirectories else 0
    header = struct.pack(
        f"{ORDER}20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries), len(strings), endian, at
    )
    whole = header + b"".join(table) + strings
    if subdirectories:
        # Two sections: the name of the program that wrote the cache, and the subdirectories.
        whole += bytes(extension) + struct.pack(f"{ORDER}II", 0xEAA42174, 2)
        whole += struct.pack(f"{ORDER}4I", 0, 0, start, 0)
        whole += struct.pack(f"{ORDER}4I", 1, 0, at + 8 + 32, 4 * len(numbers))
        whole += struct.pack(f"{ORDER}{len(numbers)}I", *numbers)
    return whole


def behind_the_oldest(new: bytes, entries: int) -> bytes:
    """Return a cache as ``ldconfig -c compat`` writes it: entries of the oldest format, then ``new``."""
    old = struct.pack(f"{ORDER}12sI", b"ld.so-1.7.0", entries) + bytes(12 * entries)
    return old + bytes(-len(old) % 8) + new
