"""Writes recorded pages as a trace.dat of version 6, which trace-cmd and KernelShark read.

The file is a head and the pages of each CPU as the kernel wrote them. The head holds the kernel's own
descriptions of its pages and events (trace-cmd.dat.v6(5), and enum TRACECMD_OPTION_* of trace-cmd).
"""

import io
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

_MAGIC = b"\x17\x08\x44tracing6\0"
_BIG_ENDIAN = int(sys.byteorder == "big")
_LONG_BYTES = struct.calcsize("l")
CPU_STATISTICS, TRACE_CLOCK, SYSTEM_NAME = 2, 4, 5
"""Options: the statistics of one CPU's buffer, the content of ``trace_clock``, the names of uname(2)."""


class Recording(NamedTuple):
    """The facts about the kernel and the recording in the head of a trace.dat.

    ``page_bytes`` is the size of a page of the ring buffer. ``header_page``, ``header_event``, the formats
    of ``ftrace`` and of the events by system, ``symbols`` (kallsyms), ``printk_formats`` and ``names``
    (saved_cmdlines) are the contents of files. ``options`` are pairs of a kind and its content.
    """

    page_bytes: int
    header_page: bytes
    header_event: bytes
    ftrace: Sequence[bytes]
    events: Mapping[str, Sequence[bytes]]
    symbols: bytes
    printk_formats: bytes
    names: bytes
    options: Sequence[tuple[int, bytes]]


def write(file: BinaryIO, recording: Recording, pages_of: Mapping[int, BinaryIO]) -> None:
    """Write the file, with the pages of each CPU by its number. Raises OSError."""
    # A reader numbers the CPUs by their order, so that one without pages takes its place, too.
    cpus = [pages_of.get(cpu, io.BytesIO()) for cpu in range(max(pages_of) + 1)]
    head = b"".join(_head(recording, len(cpus)))
    sizes = [pages.seek(0, 2) for pages in cpus]
    # The table is a part of the head, and its own size decides where the pages begin.
    at = _padded(len(head) + 16 * len(cpus), recording.page_bytes)
    table = b""
    for size in sizes:
        table += struct.pack("=QQ", at, size)
        at = _padded(at + size, recording.page_bytes)
    file.write(head + table)
    for pages in cpus:
        file.write(bytes(_padded(file.tell(), recording.page_bytes) - file.tell()))
        pages.seek(0)
        shutil.copyfileobj(pages, file, 1 << 20)


def _head(recording: Recording, cpus: int) -> Iterator[bytes]:
    """Yield the parts before the table of the CPUs' pages."""
    yield _MAGIC + bytes((_BIG_ENDIAN, _LONG_BYTES)) + struct.pack("=I", recording.page_bytes)
    yield b"header_page\0" + _sized(recording.header_page)
    yield b"header_event\0" + _sized(recording.header_event)
    yield struct.pack("=I", len(recording.ftrace)) + b"".join(map(_sized, recording.ftrace))
    yield struct.pack("=I", len(recording.events))
    for system, formats in recording.events.items():
        yield system.encode() + b"\0" + struct.pack("=I", len(formats)) + b"".join(map(_sized, formats))
    for short in (recording.symbols, recording.printk_formats):
        yield struct.pack("=I", len(short)) + short
    yield _sized(recording.names)
    yield struct.pack("=I", cpus)
    yield b"options  \0"
    for kind, content in recording.options:
        yield struct.pack("=HI", kind, len(content)) + content
    yield struct.pack("=H", 0) + b"flyrecord\0"


def _sized(content: bytes) -> bytes:
    return struct.pack("=Q", len(content)) + content


def _padded(size: int, page_bytes: int) -> int:
    return -(-size // page_bytes) * page_bytes
