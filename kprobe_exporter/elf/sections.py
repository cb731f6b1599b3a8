"""The sections of an ELF file, as pyelftools parses their headers, and its string tables."""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import IO, Any, cast

from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile

from kprobe_exporter.elf.budget import FileBudget, MeteredFile
from kprobe_exporter.errors import GrammarError

MOST_HEADERS = 1 << 12  # Sections, segments, versions or libraries. A usual file has dozens.

LONGEST_NAME = 1024

BLOCK = 1 << 14  # Symbols, or bytes of names, that are read at once
CACHED = 64  # Blocks of names that are kept
WINDOW = 1 << 20  # Bytes of names, or of versions, that are read at once
HEADER = 1 << 10  # Bytes of memory that the header of a section or a segment takes, at most


GO = (".go.buildinfo", ".note.go.buildid")
"""Sections that Go's linker writes. They stay when a program is stripped."""


class ElfSections:
    """The headers of an open file and the bytes of its sections. Raises GrammarError for another file."""

    def __init__(self, path: str, stream: IO[bytes], size: int, budget: FileBudget) -> None:
        self.path, self.size, self.budget = path, size, budget
        self.stream = cast("IO[bytes]", MeteredFile(stream, budget))
        start = self.stream.read(4)
        if start != b"\x7fELF":
            kind = "a script: probe the program that runs it" if start[:2] == b"#!" else "no ELF file"
            raise GrammarError(f"{path} is {kind}")
        self.elf = ELFFile(self.stream)
        self.machine = str(self.elf["e_machine"])
        self.order = "<" if self.elf.little_endian else ">"
        self.wide = self.elf.elfclass == 64

    @cached_property
    def sections(self) -> list[Any]:
        """The headers of the sections."""
        entry, start, size = self.elf.structs.Elf_Shdr, self.elf["e_shoff"], self.elf["e_shentsize"]
        count = self.elf.num_sections()
        if count > MOST_HEADERS:
            raise GrammarError(f"{self.path} has {count} sections, and {MOST_HEADERS} would be read")
        self.budget.kept += HEADER * count
        return [self.parse(entry, start + number * size) for number in range(count)]

    def section(self, kind: str) -> Any:
        """Return the header of the first section of this kind, None if there is none."""
        return next((section for section in self.sections if section["sh_type"] == kind), None)

    def named_sections(self, name: str) -> list[Any]:
        """Return the headers of the sections of this name."""
        number = self.elf.get_shstrndx()
        if number >= len(self.sections):
            return []
        names = Strings(self, self.sections[number])
        return [section for section in self.sections if names.text(section["sh_name"]) == name]

    @cached_property
    def is_go(self) -> bool:
        """Whether Go's linker wrote it."""
        return any(self.named_sections(name) for name in GO)

    def section_address(self, name: str) -> int | None:
        """Return the address of the section of this name, None if there is none."""
        return next((int(section["sh_addr"]) for section in self.named_sections(name)), None)

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

    def __init__(self, file: ElfSections, section: Any) -> None:
        self._file, self._section = file, section
        self._block = lru_cache(CACHED)(self._read)

    def text(self, at: int) -> str:
        """Return the name at this place, fit for a log line: ``?`` for what does not print."""
        number, start = divmod(at, BLOCK)
        data = self._block(number)[start : start + LONGEST_NAME]
        if b"\0" not in data and start + LONGEST_NAME > BLOCK:
            data = (data + self._block(number + 1))[:LONGEST_NAME]
        return printable(data.partition(b"\0")[0])

    def holds(self, name: bytes, at: int) -> bool:
        """Return whether this is the name at a place."""
        return self._file.read(self._section, at, len(name) + 1) == name + b"\0"

    def each(self, places: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield the index in ``places`` and the name of each place but 0, cut to ``LONGEST_NAME`` bytes.

        Those of one window come together, the last index first.
        """
        windows = defaultdict[int, "array[int]"](lambda: array("I"))
        for number, place in enumerate(places):
            if place:
                windows[place // WINDOW].append(number)
        for window, numbers in windows.items():
            start = window * WINDOW
            data = self._file.read(self._section, start, WINDOW)
            data += self._file.read(self._section, start + WINDOW, LONGEST_NAME) + bytes(LONGEST_NAME)
            for last in range(len(numbers), 0, -BLOCK):
                some = numbers[max(0, last - BLOCK) : last]
                self._file.budget.spend(len(some))
                for number in reversed(some):
                    begin = places[number] - start
                    yield number, data[begin : data.find(b"\0", begin)][:LONGEST_NAME]

    def _read(self, number: int) -> bytes:
        return self._file.read(self._section, number * BLOCK, BLOCK)


def printable(name: bytes) -> str:
    """Return a name fit for a log line: ``?`` for what does not print."""
    text = name.decode("utf-8", "replace")
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
