"""ELF files as pyelftools parses their headers: segments, sections, and symbol tables.

An unprivileged user may have written the file. Its headers are checked against its size, all reading has one
budget of bytes and time, names are read one by one, and any exception of the parser becomes a GrammarError of
one sentence.
"""

import errno
import os
import struct
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice
from typing import IO, Any, NamedTuple, TypeAlias, cast

from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile

from kprobe_exporter.elf.budget import Exhausted, Metered, ReadingBudget
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.util.probed_files import ProbedFiles
from kprobe_exporter.util.regular_file import NotRegularError

MOST_SYMBOLS = 1 << 22
"""Symbols of one table. Reading that many takes a second."""

MOST_HEADERS = 1 << 12
"""Sections, segments, versions or libraries. A usual file has dozens."""

MOST_CODE = 64
"""Executable segments. A usual file has one."""

MOST_NAMESAKES = 10_000
"""Symbols of one name, such as the static functions of many source files."""

MOST_PLACES = 1 << 16
"""Places of a name in a string table that are looked for at once among the symbols."""

LONGEST_NAME = 1024

BLOCK = 1 << 14
"""Symbols, or bytes of names, that are read at once."""

CACHED = 64
"""Blocks of names that are kept."""

WINDOW = 1 << 20
"""Bytes that are searched at once."""

UNDEFINED = 0
NOTYPE, FUNC, IFUNC = 0, 2, 10
LOCAL = 0
EXECUTABLE = 1
NEEDED = 1
HIDDEN = 0x8000
"""SHN_UNDEF, STT_…, STB_LOCAL, PF_X, DT_NEEDED and VERSYM_HIDDEN of elf.h. Only a reference that names its
version resolves to a hidden symbol."""

GO = (b"\0.go.buildinfo\0", b"\0.note.go.buildid\0")
"""Sections that Go's linker writes. They stay when a program is stripped."""

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


class Part(NamedTuple):
    """An executable segment: its offset in the file, its address, and its bytes in the file."""

    offset: int
    address: int
    size: int


@contextmanager
def opened(path: str, files: ProbedFiles | None = None) -> Iterator["ElfFile"]:
    """Open a file read-only. Raises GrammarError for any fault of it, also inside the ``with`` block.

    With ``files`` it stays open there, and a file that took too much work is not read again.
    """
    held = ProbedFiles() if files is None else files
    try:
        if (reason := held.refused(path)) is not None:
            raise GrammarError(reason)
        try:
            stream = held.open(path)
        except (OSError, ValueError) as error:
            raise GrammarError(_cannot_open(path, error)) from None
        try:
            yield ElfFile(path, stream, os.fstat(stream.fileno()))
        except Exhausted as error:
            held.refuse(path, f"{path} {error}")
            raise GrammarError(f"{path} {error}") from None
        except GrammarError:
            raise
        except OSError as error:
            raise GrammarError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception:  # pyelftools may raise any kind on invalid headers
            raise GrammarError(f"{path} is damaged: its headers contradict each other or its size") from None
    finally:
        if files is None:
            held.close()


def _cannot_open(path: str, error: OSError | ValueError) -> str:
    if isinstance(error, NotRegularError):
        return f"{path} {error}, so no program or library"
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOENT:
        return f"there is no file {path} here; one in a container is /proc/PID/root/…, PID a process in it"
    if code == errno.EACCES:
        return f"this process may not read {path}"
    return f"{path} cannot be opened: {error.strerror if isinstance(error, OSError) else error}"


class ElfFile:
    """An open file, made by ``opened``. On a damaged file its methods may raise any exception."""

    def __init__(self, path: str, stream: IO[bytes], status: os.stat_result) -> None:
        self.path, self.size = path, status.st_size
        self.inode = status.st_dev, status.st_ino
        self.budget = ReadingBudget()
        self.stream = cast("IO[bytes]", Metered(stream, self.budget))
        start = self.stream.read(4)
        if start != b"\x7fELF":
            kind = "a script: probe the program that runs it" if start[:2] == b"#!" else "no ELF file"
            raise GrammarError(f"{path} is {kind}")
        self.elf = ELFFile(self.stream)
        self.machine = str(self.elf["e_machine"])
        self.order = "<" if self.elf.little_endian else ">"
        self.wide = self.elf.elfclass == 64

    def offset_of(self, address: int) -> int | None:
        """Return the offset in the file of the code at this address, None if it has none."""
        for part in self.code:
            if part.address <= address < part.address + part.size:
                return address - part.address + part.offset
        return None

    def named(self, name: str) -> list[ElfSymbol]:
        """Return all symbols of this name, of any version."""
        found = (one for table in self.tables for one in table.named(name.encode()))
        most = list(islice(found, MOST_NAMESAKES + 1))
        if len(most) > MOST_NAMESAKES:
            raise GrammarError(f"{self.path} has more than {MOST_NAMESAKES} symbols {name!r}")
        return most

    def functions(self) -> Iterator[str]:
        """Yield the names of all functions, with the version if that is not the default one."""
        for table in self.tables:
            for row in table.rows():
                if row[2] & 15 not in (NOTYPE, FUNC) or row[3] == UNDEFINED:
                    continue
                found, name = table.symbol(row), table.strings.text(row[1])
                if name and self.offset_of(found.value) is not None:
                    self.budget.spend(len(name))  # the caller may keep all
                    yield name if found.default else f"{name}@{found.version}"

    def libraries(self) -> Iterator[str]:
        """Yield the libraries that it is linked with: DT_NEEDED."""
        section = next((one for one in self.sections if one["sh_type"] == "SHT_DYNAMIC"), None)
        if section is None:
            return
        strings = self.strings(section)
        entry = struct.Struct(self.order + ("qQ" if self.wide else "iI"))
        data = self.read(section, 0, MOST_HEADERS * entry.size)
        for tag, value in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
            if tag == NEEDED:
                yield strings.text(value)

    @cached_property
    def is_go(self) -> bool:
        """Whether Go's linker wrote it."""
        number = self.elf.get_shstrndx()
        if number >= len(self.sections):
            return False
        names = Strings(self, self.sections[number])
        return any(True for mark in GO for _ in names.places(mark))

    @cached_property
    def code(self) -> list[Part]:
        """The executable segments."""
        entry, start, size = self.elf.structs.Elf_Phdr, self.elf["e_phoff"], self.elf["e_phentsize"]
        count = min(self.elf.num_segments(), MOST_HEADERS)
        found = [self.parse(entry, start + number * size) for number in range(count)]
        parts = [
            Part(one["p_offset"], one["p_vaddr"], min(one["p_filesz"], self.size - one["p_offset"]))
            for one in found
            if one["p_type"] == "PT_LOAD" and one["p_flags"] & EXECUTABLE
        ]
        if len(parts) > MOST_CODE:
            raise GrammarError(f"{self.path} has {len(parts)} executable segments, more than {MOST_CODE}")
        return parts

    @cached_property
    def sections(self) -> list[Any]:
        """The headers of the sections."""
        entry, start, size = self.elf.structs.Elf_Shdr, self.elf["e_shoff"], self.elf["e_shentsize"]
        count = self.elf.num_sections()
        if count > MOST_HEADERS:
            raise GrammarError(f"{self.path} has {count} sections, and {MOST_HEADERS} would be read")
        return [self.parse(entry, start + number * size) for number in range(count)]

    @cached_property
    def tables(self) -> list["SymbolTable"]:
        """The table of exported and imported symbols, and that of all symbols if there is one."""
        kinds = ("SHT_DYNSYM", "SHT_SYMTAB")
        found = [section for kind in kinds for section in self.sections if section["sh_type"] == kind]
        return [SymbolTable(self, section) for section in found[: len(kinds)]]

    @property
    def is_stripped(self) -> bool:
        return not any(section["sh_type"] == "SHT_SYMTAB" for section in self.sections)

    def parse(self, entry: Any, at: int) -> Any:
        """Parse one entry of a table by pyelftools' description of it."""
        if at + entry.sizeof() > self.size:
            raise ValueError(at)
        return struct_parse(entry, self.stream, at)

    def read(self, section: Any, start: int, size: int) -> bytes:
        """Return bytes of a section. Raises ValueError if the section does not lie in the file."""
        if section["sh_type"] == "SHT_NOBITS" or section["sh_offset"] + section["sh_size"] > self.size:
            raise ValueError(section["sh_offset"])
        self.stream.seek(section["sh_offset"] + start)
        return self.stream.read(max(0, min(size, section["sh_size"] - start)))

    def strings(self, section: Any) -> "Strings":
        """Return the names of another section's entries."""
        return Strings(self, self.sections[section["sh_link"]])


class Strings:
    """A string table, in which each name ends in a NUL. It is never read as a whole."""

    def __init__(self, file: ElfFile, section: Any) -> None:
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

    def __init__(self, file: ElfFile, section: Any) -> None:
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
        if self._section["sh_type"] == "SHT_DYNSYM":
            for section in self._file.sections:
                if section["sh_type"] == "SHT_GNU_versym":
                    marks = array("H")
                    for start in range(0, 2 * self._count, WINDOW):
                        data = self._file.read(section, start, min(WINDOW, 2 * self._count - start))
                        marks.frombytes(data[: len(data) // 2 * 2])
                    if (self._file.order == "<") != (sys.byteorder == "little"):
                        marks.byteswap()
                    return marks
        return array("H")

    @cached_property
    def _versions(self) -> dict[int, str]:
        """The versions that this file defines, by number (.gnu.version_d)."""
        file, found = self._file, dict[int, str]()
        structs = file.elf.structs
        section = next((one for one in file.sections if one["sh_type"] == "SHT_GNU_verdef"), None)
        if section is None:
            return found
        strings, at = file.strings(section), section["sh_offset"]
        for _ in range(min(section["sh_info"], MOST_HEADERS)):
            version = file.parse(structs.Elf_Verdef, at)
            first = file.parse(structs.Elf_Verdaux, at + version["vd_aux"])
            found[version["vd_ndx"]] = strings.text(first["vda_name"])
            at += version["vd_next"]
        return found
