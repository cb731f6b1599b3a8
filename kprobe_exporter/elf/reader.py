"""ELF files as pyelftools parses their headers: segments, sections, and symbol tables.

An unprivileged user may have written the file. Its headers are checked against its size, the time and
memory for each part are bounded, and any exception of the parser becomes a GrammarError of one sentence.
"""

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import IO, Any, NamedTuple, TypeAlias

from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.util.regular_file import NotRegularError, open_regular

LARGEST_STRINGS = 1 << 28
"""Bytes of a string table. That of a browser with all its symbols has half as many."""

MOST_SYMBOLS = 1 << 22
"""Symbols of one table. Reading that many takes a second."""

MOST_HEADERS = 1 << 12
"""Sections, segments, versions or libraries. A usual file has dozens."""

LONGEST_NAME = 1024

BLOCK = 1 << 14
"""Symbols that are read at once."""

UNDEFINED = 0
NOTYPE, FUNC, IFUNC = 0, 2, 10
LOCAL = 0
EXECUTABLE = 1
HIDDEN = 0x8000
"""SHN_UNDEF, STT_…, STB_LOCAL, PF_X and VERSYM_HIDDEN of elf.h. Only a reference that names its version
resolves to a hidden symbol."""

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
def opened(path: str) -> Iterator["ElfFile"]:
    """Open a file read-only. Raises GrammarError for any fault of it, also inside the ``with`` block."""
    try:
        stream = open_regular(path)
    except (OSError, ValueError) as error:
        raise GrammarError(_cannot_open(path, error)) from None
    with stream:
        try:
            yield ElfFile(path, stream, os.fstat(stream.fileno()))
        except GrammarError:
            raise
        except OSError as error:
            raise GrammarError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception:  # pyelftools may raise any kind on invalid headers
            raise GrammarError(f"{path} is damaged: its headers contradict each other or its size") from None


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
        self.path, self.stream, self.size = path, stream, status.st_size
        self.inode = status.st_dev, status.st_ino
        start = stream.read(4)
        if start != b"\x7fELF":
            kind = "a script: probe the program that runs it" if start[:2] == b"#!" else "no ELF file"
            raise GrammarError(f"{path} is {kind}")
        self.elf = ELFFile(stream)
        self.machine = str(self.elf["e_machine"])

    def offset_of(self, address: int) -> int | None:
        """Return the offset in the file of the code at this address, None if it has none."""
        for part in self.code:
            if part.address <= address < part.address + part.size:
                return address - part.address + part.offset
        return None

    def named(self, name: str) -> list[ElfSymbol]:
        """Return all symbols of this name, of any version."""
        return [one for table in self.tables for one in table.named(name.encode())]

    def functions(self) -> Iterator[str]:
        """Yield the names of all functions, with the version if that is not the default one."""
        for table in self.tables:
            for row in table.rows():
                if row[2] & 15 not in (NOTYPE, FUNC) or row[3] == UNDEFINED:
                    continue
                found, name = table.symbol(row), text(table.strings, row[1])
                if name and self.offset_of(found.value) is not None:
                    yield name if found.default else f"{name}@{found.version}"

    def libraries(self) -> Iterator[str]:
        """Yield the libraries that it is linked with: DT_NEEDED."""
        for section in self.sections:
            if section["sh_type"] != "SHT_DYNAMIC":
                continue
            strings = self.strings(self.sections[section["sh_link"]])
            entry = self.elf.structs.Elf_Dyn
            for number in range(min(section["sh_size"] // entry.sizeof(), MOST_HEADERS)):
                found = self.parse(entry, section["sh_offset"] + number * entry.sizeof())
                if found["d_tag"] == "DT_NEEDED":
                    yield text(strings, found["d_val"])

    @cached_property
    def is_go(self) -> bool:
        """Whether Go's linker wrote it."""
        number = self.elf.get_shstrndx()
        if number >= len(self.sections):
            return False
        names = self.strings(self.sections[number])
        return any(mark in names for mark in GO)

    @cached_property
    def code(self) -> list[Part]:
        """The executable segments."""
        entry, start, size = self.elf.structs.Elf_Phdr, self.elf["e_phoff"], self.elf["e_phentsize"]
        count = min(self.elf.num_segments(), MOST_HEADERS)
        found = [self.parse(entry, start + number * size) for number in range(count)]
        return [
            Part(one["p_offset"], one["p_vaddr"], min(one["p_filesz"], self.size - one["p_offset"]))
            for one in found
            if one["p_type"] == "PT_LOAD" and one["p_flags"] & EXECUTABLE
        ]

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

    def strings(self, section: Any) -> bytes:
        """Return a whole string table. Each name in it ends in a NUL."""
        if section["sh_size"] > LARGEST_STRINGS:
            raise GrammarError(f"{self.path} has {section['sh_size']} bytes of names, which is too many")
        return self.read(section, 0, section["sh_size"])


class SymbolTable:
    """A symbol table with its names and, for exported symbols, the versions."""

    def __init__(self, file: ElfFile, section: Any) -> None:
        self._file, self._section = file, section
        self.strings = file.strings(file.sections[section["sh_link"]])
        self._wide = file.elf.elfclass == 64
        self._order = "<" if file.elf.little_endian else ">"
        self._entry = struct.Struct(self._order + ("IBBHQQ" if self._wide else "IIIBBH"))
        self._count = section["sh_size"] // self._entry.size
        if self._count > MOST_SYMBOLS:
            raise GrammarError(f"{file.path} has {self._count} symbols, and {MOST_SYMBOLS} would be read")

    def rows(self) -> Iterator[Row]:
        """Yield all symbols as plain tuples, since there may be a million."""
        number, size = 0, self._entry.size
        for start in range(0, self._count, BLOCK):
            count = min(BLOCK, self._count - start)
            for row in self._entry.iter_unpack(self._file.read(self._section, start * size, count * size)):
                if self._wide:
                    name, info, _, section, value, length = row
                else:
                    name, value, length, info, _, section = row
                yield number, name, info, section, value, length
                number += 1

    def named(self, name: bytes) -> list[ElfSymbol]:
        """Return the symbols of this name, of any version."""
        strings, whole = self.strings, name + b"\0"
        return [self.symbol(row) for row in self.rows() if strings.startswith(whole, row[1])]

    def symbol(self, row: Row) -> ElfSymbol:
        """Return the symbol of a row, with its version."""
        number, _, info, section, value, size = row
        mark = self._marks[number] if number < len(self._marks) else 1
        version = self._versions.get(mark & ~HIDDEN, "") if mark & ~HIDDEN > 1 else ""
        return ElfSymbol(value, size, info & 15, info >> 4, section, version, default=not mark & HIDDEN)

    @cached_property
    def _marks(self) -> tuple[int, ...]:
        """The number of each symbol's version, and whether it is hidden (.gnu.version)."""
        if self._section["sh_type"] == "SHT_DYNSYM":
            for section in self._file.sections:
                if section["sh_type"] == "SHT_GNU_versym":
                    data = self._file.read(section, 0, 2 * self._count)
                    return struct.unpack(f"{self._order}{len(data) // 2}H", data[: len(data) // 2 * 2])
        return ()

    @cached_property
    def _versions(self) -> dict[int, str]:
        """The versions that this file defines, by number (.gnu.version_d)."""
        file, found = self._file, dict[int, str]()
        structs = file.elf.structs
        for section in file.sections:
            if section["sh_type"] != "SHT_GNU_verdef":
                continue
            strings, at = file.strings(file.sections[section["sh_link"]]), section["sh_offset"]
            for _ in range(min(section["sh_info"], MOST_HEADERS)):
                version = file.parse(structs.Elf_Verdef, at)
                first = file.parse(structs.Elf_Verdaux, at + version["vd_aux"])
                found[version["vd_ndx"]] = text(strings, first["vda_name"])
                at += version["vd_next"]
        return found


def text(strings: bytes, at: int) -> str:
    """Return a name of a string table, fit for a log line: each character that does not print is a ``?``."""
    end = strings.find(b"\0", at, at + LONGEST_NAME)
    name = strings[at : end if end >= 0 else at + LONGEST_NAME].decode(errors="replace")
    return name if name.isprintable() else "".join(one if one.isprintable() else "?" for one in name)
