"""Section .gnu_debugdata: the names of a stripped program's own functions, as Fedora and its kin ship them.

It holds an ELF file that is compressed by xz and has a symbol table of those functions that the table of
exported symbols lacks; their addresses are those of the program ("MiniDebugInfo" in the manual of GDB).
"""

import io
import lzma
from collections.abc import Callable

MOST_COMPRESSED = 1 << 23
"""Bytes of the section. A browser's library has 2 MB."""

MOST_BYTES = 1 << 24
"""Bytes of the ELF file in it."""

MOST_MEMORY = 1 << 26
"""Bytes that the decompression takes. A dictionary of xz's preset 6 takes 9 MB."""

BLOCK = 1 << 16


class NoTableError(ValueError):
    """The section cannot be decompressed. The message is a clause after the section's name."""


def decompressed(read: Callable[[int, int], bytes], size: int, spend: Callable[[int], None]) -> io.BytesIO:
    """Return the ELF file in a section of ``size`` bytes.

    ``read`` returns bytes of the section by their start and their number. ``spend`` is told how many bytes
    each step gives, and may raise what ends the work. Raises NoTableError.
    """
    if size > MOST_COMPRESSED:
        raise NoTableError(f"has {size} bytes, and {MOST_COMPRESSED} would be read")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, MOST_MEMORY)
    file, start = io.BytesIO(), 0
    try:
        while not decompressor.eof:
            given = b""
            if decompressor.needs_input:
                given = read(start, min(BLOCK, size - start)) if start < size else b""
                start += len(given)
                if not given:
                    raise NoTableError("ends early")
            part = decompressor.decompress(given, BLOCK)
            spend(len(part))
            if file.tell() + len(part) > MOST_BYTES:
                raise NoTableError(f"has more than {MOST_BYTES} bytes when decompressed")
            file.write(part)
    except lzma.LZMAError:
        raise NoTableError("is not what xz writes") from None
    return file
