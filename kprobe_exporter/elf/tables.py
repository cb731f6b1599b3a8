"""Symbol tables and string tables of ELF files, which are never read as a whole."""

import struct
import sys
from array import array
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kprobe_exporter.errors import GrammarError

if TYPE_CHECKING:
    from kprobe_exporter.elf.reader import ElfFile

MOST_SYMBOLS = 1 << 22  # Symbols of one table. Reading that many takes a second.
MOST_HEADERS = 1 << 12  # Sections, segments, versions or libraries. A usual file has dozens.
MOST_PLACES = 1 << 16  # Places of a name in a string table that are looked for at once among the symbols

LONGEST_NAME = 1024

BLOCK = 1 << 14  # Symbols, or bytes of names, that are read at once
CACHED = 64  # Blocks of names that are kept
WINDOW = 1 << 20  # Bytes that are searched at once

UNDEFINED = 0
NOTYPE, FUNC, IFUNC = 0, 2, 10
LOCAL, GLOBAL, WEAK = 0, 1, 2
HIDDEN = 0x8000
"""SHN_UNDEF, STT_…, STB_… and VERSYM_HIDDEN of elf.h. Only a reference that names its version resolves to
a hidden symbol."""

Row: TypeAlias = tuple[int, int, int, int, int, int]
"""A symbol as the file has it: number, offset of the name, info, section, value, size."""


class ElfSymbol(NamedTuple):
    """A symbol of a file. ``value`` is an address; ``version`` is empty if there is none."""

    value: int
    size: int
    type: int
    binding: int
    section: int
    version: str
    default: bool

    @property
    def is_code(self) -> bool:
        """Whether it may be a function of this file. Symbols written in assembly may have no type."""
        return self.section != UNDEFINED and self.type in (NOTYPE, FUNC)


class Strings:
    """A string table, in which each name ends in a NUL. It is never read as a whole."""

    def __init__(self, file: "ElfFile", section: Any) -> None:
        self._file, self._section = file, section
        self._block = lru_cache(CACHED)(self._read)

    def text(self, at: int) -> str:
        """Return the name at this place, fit for a log line: ``?`` for what does not print."""
        number, start = divmod(at, BLOCK)
        data = self._block(number)[start : start + LONGEST_NAME]
        if b"\0" not in data and start + LONGEST_NAME > BLOCK:
            data = (data + self._block(number + 1))[:LONGEST_NAME]
        name = data.partition(b"\0")[0].decode(errors="replace")
        return name if name.isprintable() else "".join(one if one.isprintable() else "?" for one in name)

    def places(self, wanted: bytes) -> Iterator[int]:
        """Yield each place at which these bytes begin."""
        start, tail = 0, b""
        while data := self._file.read(self._section, start, WINDOW):
            window = tail + data
            at = window.find(wanted)
            while at >= 0:
                yield start - len(tail) + at
                at = window.find(wanted, at + 1)
            start += len(data)
            tail = window[len(window) - len(wanted) + 1 :] if len(wanted) > 1 else b""

    def _read(self, number: int) -> bytes:
        return self._file.read(self._section, number * BLOCK, BLOCK)


class SymbolTable:
    """A symbol table with its names and, for exported symbols, the versions."""

    def __init__(self, file: "ElfFile", section: Any) -> None:
        self._file, self._section = file, section
        self.strings = file.strings(section)
        self._entry = struct.Struct(file.order + ("IBBHQQ" if file.wide else "IIIBBH"))
        self._count = section["sh_size"] // self._entry.size
        if self._count > MOST_SYMBOLS:
            raise GrammarError(f"{file.path} has {self._count} symbols, and {MOST_SYMBOLS} would be read")

    def rows(self) -> Iterator[Row]:
        """Yield all symbols as plain tuples, since there may be a million."""
        number, size, wide = 0, self._entry.size, self._file.wide
        for start in range(0, self._count, BLOCK):
            count = min(BLOCK, self._count - start)
            for row in self._entry.iter_unpack(self._file.read(self._section, start * size, count * size)):
                if wide:
                    name, info, _, section, value, length = row
                else:
                    name, value, length, info, _, section = row
                yield number, name, info, section, value, length
                number += 1

    def named(self, name: bytes) -> Iterator[ElfSymbol]:
        """Yield the symbols of this name, of any version."""
        places = self.strings.places(name + b"\0")
        while some := set(islice(places, MOST_PLACES)):
            yield from (self.symbol(row) for row in self.rows() if row[1] in some)

    def symbol(self, row: Row) -> ElfSymbol:
        """Return the symbol of a row, with its version."""
        number, _, info, section, value, size = row
        mark = self._marks[number] if number < len(self._marks) else 1
        version = self._versions.get(mark & ~HIDDEN, "") if mark & ~HIDDEN > 1 else ""
        return ElfSymbol(value, size, info & 15, info >> 4, section, version, default=not mark & HIDDEN)

    @cached_property
    def _marks(self) -> "array[int]":
        """The number of each symbol's version, and whether it is hidden (.gnu.version)."""
        marks = array("H")
        section = self._file.section("SHT_GNU_versym")
        if section is None or self._section["sh_type"] != "SHT_DYNSYM":
            return marks
        for start in range(0, 2 * self._count, WINDOW):
            data = self._file.read(section, start, min(WINDOW, 2 * self._count - start))
            marks.frombytes(data[: len(data) // 2 * 2])
        if (self._file.order == "<") != (sys.byteorder == "little"):
            marks.byteswap()
        return marks

    @cached_property
    def _versions(self) -> dict[int, str]:
        """The versions that this file defines, by number (.gnu.version_d)."""
        file, found = self._file, dict[int, str]()
        structs = file.elf.structs
        if (section := file.section("SHT_GNU_verdef")) is None:
            return found
        strings, at = file.strings(section), section["sh_offset"]
        for _ in range(min(section["sh_info"], MOST_HEADERS)):
            version = file.parse(structs.Elf_Verdef, at)
            first = file.parse(structs.Elf_Verdaux, at + version["vd_aux"])
            found[version["vd_ndx"]] = strings.text(first["vda_name"])
            at += version["vd_next"]
        return found
