"""Symbol tables of ELF files, which are never held in memory as a whole.

A table may have a million symbols, and a plan may ask for a thousand of them. So the first question makes an
index of the names: hash chains in two arrays, 8 bytes a symbol. The names for it are read window by window,
each window once, in any order of the names. A look-up reads the few symbols of one chain.
"""

import struct
import sys
from array import array
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from kprobe_exporter.elf.sections import BLOCK, LONGEST_NAME, MOST_HEADERS, WINDOW, ElfSections
from kprobe_exporter.errors import GrammarError

MOST_SYMBOLS = 1 << 22  # Symbols of one table. Reading that many takes a second.

UNDEFINED = 0
NOTYPE, FUNC, IFUNC = 0, 2, 10
LOCAL, GLOBAL, WEAK = 0, 1, 2
HIDDEN = 0x8000
"""SHN_UNDEF, STT_…, STB_… and VERSYM_HIDDEN of elf.h. Only a reference that names its version resolves to
a hidden symbol."""

Row: TypeAlias = tuple[int, int, int, int, int, int]
"""A symbol as Elf64_Sym has it: the place of the name, info, other, section, value, size."""


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


class SymbolTable:
    """A symbol table with its names and, for exported symbols, the versions."""

    def __init__(self, file: ElfSections, section: Any) -> None:
        self._file, self._section = file, section
        self.strings = file.strings(section)
        self.versioned = section["sh_type"] == "SHT_DYNSYM" and file.section("SHT_GNU_versym") is not None
        self._entry = struct.Struct(file.order + ("IBBHQQ" if file.wide else "IIIBBH"))
        self._count = section["sh_size"] // self._entry.size
        if self._count > MOST_SYMBOLS:
            raise GrammarError(f"{file.path} has {self._count} symbols, and {MOST_SYMBOLS} would be read")

    def rows(self, first: int = 0, count: int | None = None) -> Iterator[Row]:
        """Yield the symbols, all or some, as plain tuples, since there may be a million."""
        blocks = self._blocks(first, self._count if count is None else count)
        rows: Iterator[Row] = chain.from_iterable(map(self._entry.iter_unpack, blocks))
        if self._file.wide:
            return rows
        return ((name, info, other, at, value, size) for name, value, size, info, other, at in rows)

    def named(self, name: bytes) -> Iterator[ElfSymbol]:
        """Yield the symbols of this name, of any version."""
        heads, following = self._index
        after = heads[hash(name[:LONGEST_NAME]) & (len(heads) - 1)]
        while after:
            [row] = self.rows(after - 1, 1)
            if self.strings.holds(name, row[0]):
                yield self.symbol(after - 1, row)
            after = following[after - 1]

    @cached_property
    def _index(self) -> tuple["array[int]", "array[int]"]:
        """The chains of symbols whose names have one hash: the first of each chain, the next of each symbol.

        Both count from 1, and 0 ends a chain. Python's hash has a secret key, so no file can have long chains
        of different names.
        """
        layout = struct.Struct(f"{self._file.order}I{self._entry.size - 4}x")
        entries = chain.from_iterable(map(layout.iter_unpack, self._blocks(0, self._count)))
        places = array("I", chain.from_iterable(entries))
        heads = array("I", bytes(4 << self._count.bit_length() - 1 if self._count else 4))
        following = array("I", bytes(4 * self._count))
        mask = len(heads) - 1
        for number, name in self.strings.each(places):
            link = hash(name) & mask
            following[number] = heads[link]
            heads[link] = number + 1
        self._file.budget.kept += 4 * (len(heads) + len(following))
        return heads, following

    def _blocks(self, first: int, count: int) -> Iterator[bytes]:
        """Yield the bytes of the symbols, some at once."""
        for start in range(first, first + count, BLOCK):
            some = min(BLOCK, first + count - start)
            yield self._file.read(self._section, start * self._entry.size, some * self._entry.size)

    def symbol(self, number: int, row: Row) -> ElfSymbol:
        """Return the symbol with this number, and with its version."""
        _, info, _, section, value, size = row
        default = number >= len(self._marks) or not self._marks[number] & HIDDEN
        return ElfSymbol(value, size, info & 15, info >> 4, section, self._version(number), default)

    def suffix(self, number: int) -> str:
        """Return what follows a symbol's name: nothing, or ``@VERSION`` if that is not the default one."""
        if number >= len(self._marks) or not self._marks[number] & HIDDEN:
            return ""
        return f"@{self._version(number)}"

    def _version(self, number: int) -> str:
        mark = self._marks[number] & ~HIDDEN if number < len(self._marks) else 1
        return self._versions.get(mark, "") if mark > 1 else ""

    @cached_property
    def _marks(self) -> "array[int]":
        """The number of each symbol's version, and whether it is hidden (.gnu.version)."""
        marks = array("H")
        if not self.versioned:
            return marks
        section = self._file.section("SHT_GNU_versym")
        for start in range(0, 2 * self._count, WINDOW):
            data = self._file.read(section, start, min(WINDOW, 2 * self._count - start))
            marks.frombytes(data[: len(data) // 2 * 2])
        if (self._file.order == "<") != (sys.byteorder == "little"):
            marks.byteswap()
        self._file.budget.kept += 2 * len(marks)
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
