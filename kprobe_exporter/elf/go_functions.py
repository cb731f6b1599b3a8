"""The functions of a Go program, which its own runtime finds in .gopclntab, also where it is stripped.

The table begins with a header: a magic number for the version of Go, and the offsets of its parts. One part
has a pair for each function, sorted by address: where the function begins, and where its description is. The
description begins with the address again and the place of the name among the names (runtime/symtab.go and
debug/gosym/pclntab.go of Go). It is read into a symbol table of ELF.
"""

import re
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from kprobe_exporter.elf.budget import MOST_AT_ONCE
from kprobe_exporter.elf.mini_debug_info import NoTableError
from kprobe_exporter.elf.sections import BLOCK, ElfSections, Strings
from kprobe_exporter.elf.tables import FUNC, GLOBAL, SymbolTable

OffsetOf: TypeAlias = Callable[[int], int | None]
"""Return the offset in the file of an address of code, None if there is none."""

SECTION = ".gopclntab"

MERGED = ".data.rel.ro"
"""The section that has the table in a position-independent program with cgo, until Go 1.25."""

GO_1_16, GO_1_18, GO_1_20 = 0xFFFFFFFA, 0xFFFFFFF0, 0xFFFFFFF1
MAGICS = (GO_1_16, GO_1_18, GO_1_20)
"""The magic number of each version from this one on, and all of them."""

MAX_FUNCTIONS = 1 << 18  # Each takes 24 bytes of memory. Kubernetes' programs have 150,000.

MODULE = ".go.module"
"""The section with runtime.moduledata, since Go 1.26."""

MODULE_TEXT = 22  # Words before the address of the code in it (runtime/symtab.go)

_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym of elf.h


class _GoSections(ElfSections):
    """The table as sections of an ELF file: symbols in memory, and names in the program."""

    def __init__(self, file: ElfSections, symbols: bytes, names: Any) -> None:
        self.path, self.budget, self.order, self.wide = file.path, file.budget, "<", True
        self._file, self._symbols, self._names = file, symbols, names

    def read(self, section: Any, start: int, size: int) -> bytes:
        return self._symbols[start : start + size]

    def strings(self, section: Any) -> Strings:
        return Strings(self._file, self._names)


def go_functions(file: ElfSections, offset_of: OffsetOf) -> SymbolTable | None:
    """Return the functions; None if there is no table. Raises NoTableError, or any exception if damaged."""
    section = next(iter(file.named_sections(SECTION)), None) or (_merged(file) if file.is_go else None)
    if section is None:
        return None
    order, word = file.order, "Q" if file.wide else "I"
    magic, _, _, width = struct.unpack(order + "IHBB", file.read(section, 0, 8))
    if magic not in MAGICS or width != (8 if file.wide else 4):
        raise NoTableError("has a form that is not known: that of Go 1.16 to 1.27 is")
    is_relative = magic != GO_1_16  # Functions begin at offsets from the code's start, not at addresses.
    header = struct.Struct(f"{order}{8 if is_relative else 7}{word}")
    count, _, *_, names, _, _, _, functions = header.unpack(file.read(section, 8, header.size))
    if count > MAX_FUNCTIONS:
        raise NoTableError(f"has {count} functions, and {MAX_FUNCTIONS} would be read")
    if not header.size <= names < section["sh_size"]:
        raise ValueError(names)
    edge = struct.Struct(order + ("I" if is_relative else word))
    pair, description = struct.Struct(order + 2 * edge.format[1:]), struct.Struct(f"{edge.format}I")
    pairs, descriptions = _reader(file, section), _reader(file, section)
    [code_end] = edge.unpack(pairs(functions + count * pair.size, edge.size))
    code = _code_start(file, offset_of, section, code_end) if is_relative else 0
    symbols = bytearray()
    for at in range(functions, functions + count * pair.size, pair.size):
        begin, place = pair.unpack(pairs(at, pair.size))
        [end] = edge.unpack(pairs(at + pair.size, edge.size))
        again, name = description.unpack(descriptions(functions + place, description.size))
        if again != begin:
            raise ValueError(at)
        # A name at 0 would count as none, so that places are counted from the byte before the names.
        symbols += _SYMBOL.pack(name + 1, GLOBAL << 4 | FUNC, 0, 1, code + begin, max(0, end - begin))
    file.budget.kept += len(symbols)
    table = {"sh_type": "SHT_SYMTAB", "sh_size": len(symbols)}
    return SymbolTable(_GoSections(file, bytes(symbols), _behind(section, names - 1)), table)


def _merged(file: ElfSections) -> Any:
    """Return the part of MERGED that begins with the table, as a section; None if there is none."""
    magics = b"|".join(re.escape(struct.pack(file.order + "I", magic)) for magic in MAGICS)
    header = re.compile(rb"(?:%s)\0\0[\1\2\4]%c" % (magics, 8 if file.wide else 4))
    for section in file.named_sections(MERGED):
        for start in range(0, section["sh_size"], MOST_AT_ONCE):
            for found in header.finditer(file.read(section, start, MOST_AT_ONCE)):
                if found.start() % 8 == 0:
                    return _behind(section, start + found.start())
    return None


def _behind(section: Any, at: int) -> Any:
    """Return the part of a section from byte ``at`` on."""
    moved = {name: section[name] + at for name in ("sh_offset", "sh_addr")}
    return {"sh_type": section["sh_type"], "sh_size": section["sh_size"] - at, **moved}


def _code_start(file: ElfSections, offset_of: OffsetOf, section: Any, size: int) -> int:
    """Return the address from which offsets count. Raises NoTableError.

    Until Go 1.25 the header has it, since then only the structure that describes the module.
    """
    word = struct.Struct(file.order + ("Q" if file.wide else "I"))
    modules = ((one, MODULE_TEXT * word.size) for one in file.named_sections(MODULE))
    for part, at in [(section, 8 + 2 * word.size), *modules]:
        start = _relocation(file, part["sh_addr"] + at)
        if start is None:
            [start] = word.unpack(file.read(part, at, word.size))
        if start and None not in (offset_of(start), offset_of(start + size - 1)):
            return int(start)
    raise NoTableError("does not say where the code begins")


def _relocation(file: ElfSections, address: int) -> int | None:
    """Return the word that the loader writes to an address, None if it does not write there."""
    entry = struct.Struct(file.order + ("QQq" if file.wide else "IIi"))
    for table in (one for one in file.sections if one["sh_type"] == "SHT_RELA"):
        for start in range(0, table["sh_size"], BLOCK * entry.size):
            for place, _, addend in entry.iter_unpack(file.read(table, start, BLOCK * entry.size)):
                if place == address:
                    return int(addend)
    return None


def _reader(file: ElfSections, section: Any) -> Callable[[int, int], bytes]:
    """Return a function that reads bytes of a section by their place and number, mostly in order."""
    start, data = 0, b""

    def read(at: int, size: int) -> bytes:
        nonlocal start, data
        if not start <= at <= start + len(data) - size:
            start, data = at, file.read(section, at, BLOCK)
        return data[at - start : at - start + size]

    return read
