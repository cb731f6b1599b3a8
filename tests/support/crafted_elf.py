"""ELF files as an attacker writes them: any sections, holes of any size, symbols that lead anywhere."""

import struct
from pathlib import Path
from typing import TypeAlias

SYMTAB, NAMES, DYNAMIC, NOTES, DYNSYM, VERDEF, VERSYM = 2, 3, 6, 7, 11, 0x6FFFFFFD, 0x6FFFFFFF
"""SHT_… of elf.h."""

CODE = 64 + 56
"""The offset of the code, behind the headers."""

ADDRESS = 0x1000
"""The address of the file's first byte."""

Section: TypeAlias = tuple[int, bytes | int, int, int]
"""Its type, its content or the size of a hole, its link and its info."""


def elf(path: Path, *sections: Section, code: int = 16, names: int = 0, segments: int = 0) -> Path:
    """Write an ELF file with bytes of code and these sections, from number 1 on. Holes take no space.

    The section ``names`` begins with the name of all sections. There are ``segments`` writable ones of no
    bytes besides the code.
    """
    at, headers = CODE + code, [bytes(64)]
    loaded = struct.pack("<IIQQQQQQ", 1, 5, 0, ADDRESS, ADDRESS, at, at, 0x1000)
    loaded += struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, 0, 0, 0x1000) * segments
    with path.open("wb") as file:
        for kind, content, link, info in sections:
            size = content if isinstance(content, int) else len(content)
            if isinstance(content, bytes):
                file.seek(at)
                file.write(content)
            headers.append(struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, info, 1, 0))
            at += size
        file.seek(at)
        file.write(b"".join(headers))
        file.write(loaded)
        begin = 64 if not segments else at + 64 * len(headers)
        file.seek(0)
        file.write(b"\x7fELF\2\1\1" + bytes(9))
        file.write(
            struct.pack(
                "<HHIQQQIHHHHHH",
                *(2, 62, 1, 0, begin, at, 0, 64, 56, 1 + segments, 64, len(headers), names),
            )
        )
        file.write(loaded[:56])
    return path


def symbol(name: int, section: int = 1, offset: int = CODE) -> bytes:
    """Return a function's symbol: the place of its name, and its offset in the file."""
    return struct.pack("<IBBHQQ", name, 0x12, 0, section, ADDRESS + offset, 8)


def leading_to(path: Path, name: str, offset: int) -> Path:
    """Write a file in which the function ``name`` is at this offset."""
    table = symbol(1, offset=offset)
    return elf(path, (NAMES, f"\0{name}\0".encode(), 0, 0), (SYMTAB, table, 1, 0), code=offset + 16)
