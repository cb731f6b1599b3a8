"""The dynamic loader's cache, /etc/ld.so.cache: where the libraries of each name are. Pure.

Its format is that of sysdeps/generic/dl-cache.h of glibc. A header ``glibc-ld.so.cache1.1`` precedes the
entries, and the names and paths follow them. The oldest format, ``ld.so-1.7.0``, may stand in front of all
that; its own entries are skipped, as glibc does.
"""

import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

MAGIC, OLD_MAGIC = b"glibc-ld.so.cache1.1", b"ld.so-1.7.0"

ORDER = "<" if sys.byteorder == "little" else ">"

HEADER = struct.Struct(
    ORDER + "20sIIB3xI12x"
)  # magic, entries, bytes of strings, flags, the extension's place
ENTRY = struct.Struct(ORDER + "iIIIQ")  # flags, name, path, an unused version, hwcap
OLD_HEADER, OLD_ENTRY = struct.Struct(ORDER + "12sI"), struct.Struct(ORDER + "iII")

ENDIAN, OTHER_ENDIAN = 3, 3 if sys.byteorder == "little" else 2
"""cache_file_new_flags_endian_mask, and the value of a machine with the other byte order."""

EXTENSION, EXTENSION_MAGIC = struct.Struct(ORDER + "II"), 0xEAA42174
SECTION, HWCAPS = struct.Struct(ORDER + "IIII"), 1  # tag, flags, offset, size; the tag of the subdirectories
MOST_SECTIONS, MOST_HWCAPS = 64, 1024

NAMED = 1 << 62
"""DL_CACHE_HWCAP_EXTENSION. The lower half of such an hwcap numbers a subdirectory of glibc-hwcaps."""

LONGEST_NAME, LONGEST_PATH = 255, 1024
"""Bytes of a library's name (NAME_MAX of linux/limits.h), and of its path, which many entries may share."""

MOST_MATCHES = 32
"""Libraries of one name for this machine's programs. There is one for each subdirectory of glibc-hwcaps."""


class CachedLibrary(NamedTuple):
    """The path of a library, and what it requires of the processor.

    ``hwcap`` is empty for any processor, or the name of a subdirectory of glibc-hwcaps such as x86-64-v3. It
    is None for a requirement in the bits that glibc before 2.33 wrote.
    """

    path: str
    hwcap: str | None


class LoaderCache:
    """A parsed cache. ``flags`` are those of entries for this machine's programs.

    Raises ValueError with a clause, also from its methods, for bytes that are not a cache.
    """

    def __init__(self, data: bytes, flags: int) -> None:
        start = _start(data)
        self._data, self._flags = data[start:], flags
        if len(self._data) < HEADER.size:
            raise ValueError("it ends in its header")
        _, self._count, strings, endian, extension = HEADER.unpack_from(self._data)
        if endian & ENDIAN == OTHER_ENDIAN:
            raise ValueError("it has the byte order of another machine")
        if HEADER.size + self._count * ENTRY.size + strings > len(self._data):
            raise ValueError("it is shorter than its header says")
        # Behind the oldest format, glibc itself misreads the names of the subdirectories and ignores them
        # (seen in 2.36): places in the extension count from the file's start, and its names' from the header.
        self._hwcaps = list(self._subdirectories(extension)) if extension and not start else []

    def find(self, name: str) -> list[CachedLibrary]:
        """Return the libraries of this name, in the cache's order."""
        wanted, found = name.encode() + b"\0", list[CachedLibrary]()
        for key, path, hwcap in self._entries():
            if self._data.startswith(wanted, key):
                if len(found) == MOST_MATCHES:
                    raise ValueError(f"it has more than {MOST_MATCHES} libraries of one name")
                found.append(CachedLibrary(self._text(path, LONGEST_PATH), self._hwcap(hwcap)))
        return found

    def names(self) -> Iterator[str]:
        """Yield the names of all libraries, in the cache's order. One may come several times."""
        return (self._text(key) for key, _, _ in self._entries())

    def _entries(self) -> Iterator[tuple[int, int, int]]:
        """Yield the places of name and path, and the hwcap, of each library for this machine's programs."""
        table = memoryview(self._data)[HEADER.size : HEADER.size + self._count * ENTRY.size]
        for flags, key, path, _, hwcap in ENTRY.iter_unpack(table):
            if flags == self._flags:
                yield key, path, hwcap

    def _hwcap(self, hwcap: int) -> str | None:
        if not hwcap:
            return ""
        number = hwcap & 0xFFFFFFFF
        return self._hwcaps[number] if hwcap & NAMED and number < len(self._hwcaps) else None

    def _subdirectories(self, start: int) -> Iterator[str]:
        """Yield the names of the subdirectories of glibc-hwcaps, in the order of their numbers."""
        magic, count = self._unpack(EXTENSION, start)
        if magic != EXTENSION_MAGIC or count > MOST_SECTIONS:
            raise ValueError("its extension is no such one")
        for number in range(count):
            tag, _, offset, size = self._unpack(SECTION, start + EXTENSION.size + number * SECTION.size)
            if tag != HWCAPS:
                continue
            if size // 4 > MOST_HWCAPS or offset + size > len(self._data):
                raise ValueError("its list of subdirectories does not lie in it")
            for (place,) in struct.iter_unpack(f"{ORDER}I", self._data[offset : offset + size // 4 * 4]):
                yield self._text(place)

    def _unpack(self, form: struct.Struct, start: int) -> tuple[int, ...]:
        if start + form.size > len(self._data):
            raise ValueError("its extension does not lie in it")
        return form.unpack_from(self._data, start)

    def _text(self, start: int, longest: int = LONGEST_NAME) -> str:
        end = self._data.find(b"\0", start, start + longest + 1)
        if end < 0:
            raise ValueError("a name in it has no end")
        text = self._data[start:end].decode(errors="replace")
        if not text.isprintable():
            raise ValueError("a name in it does not print")
        return text


def _start(data: bytes) -> int:
    """Return the offset of the header: 0, or behind the entries of the oldest format."""
    if data.startswith(MAGIC):
        return 0
    if not data.startswith(OLD_MAGIC) or len(data) < OLD_HEADER.size:
        raise ValueError("it does not begin as one")
    count: int = OLD_HEADER.unpack_from(data)[1]
    end = OLD_HEADER.size + count * OLD_ENTRY.size
    for alignment in (8, 4):  # that of a 64-bit number, which is 4 on i386
        start = (end + alignment - 1) // alignment * alignment
        if data.startswith(MAGIC, start):
            return start
    raise ValueError("it has the format of glibc before 2.2")
