"""Reads single fields of a binary record, where the compiled walk is not built or leaves them to Python."""

import struct
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from kprobe_exporter.model.record_layout import Field
from kprobe_exporter.model.values import COMM_BYTES, Value

Buffer: TypeAlias = bytes | bytearray | memoryview
Read: TypeAlias = Callable[[Buffer, int, int, int], Value]
"""Takes a page, where the record starts and ends in it, and its thread's id."""

CODES = {
    ("unsigned", 1): "B",
    ("unsigned", 2): "H",
    ("unsigned", 4): "I",
    ("unsigned", 8): "Q",
    ("signed", 1): "b",
    ("signed", 2): "h",
    ("signed", 4): "i",
    ("signed", 8): "q",
}
"""Formats of numbers in the module struct."""

NUMBER = struct.Struct("=I")
ADDRESS = struct.Struct("=Q")


class Names(Protocol):
    """Looks up names that records hold only numbers for. Only the reader's thread calls it.

    ``tgid`` and ``comm`` are a thread's. ``function`` is the function at an address, and ``caller`` the one
    at an address that a function returns to; None if unknown. ``symbol`` is an address as the kernel prints
    it, ``vfs_read+0x10/0x1a0``; None where addresses may not be seen.
    """

    def tgid(self, tid: int) -> int | None: ...
    def comm(self, tid: int) -> bytes | None: ...
    def function(self, address: int) -> bytes | None: ...
    def caller(self, address: int) -> bytes | None: ...
    def symbol(self, address: int) -> bytes | None: ...


def reader(field: Field, names: Names) -> Read:
    """Return the function that reads this field; None for an unreadable value or one outside the record."""
    return _READERS[field.kind](field, names)


def _number(field: Field, names: Names) -> Read:
    number = struct.Struct("=" + CODES[field.kind, field.size])
    return lambda data, start, end, tid: number.unpack_from(data, start + field.offset)[0]


def _char(field: Field, names: Names) -> Read:
    return lambda data, start, end, tid: bytes(data[start + field.offset : start + field.offset + 1])


def _symbol(field: Field, names: Names) -> Read:
    return lambda data, start, end, tid: names.symbol(ADDRESS.unpack_from(data, start + field.offset)[0])


def _comm(field: Field, names: Names) -> Read:
    return lambda data, start, end, tid: names.comm(tid)


def _program(field: Field, names: Names) -> Read:
    read = _located(field, names)

    def name(data: Buffer, start: int, end: int, tid: int) -> bytes | None:
        path = read(data, start, end, tid)
        return program_name(path) if isinstance(path, bytes) else None

    return name


def program_name(path: bytes | None) -> bytes | None:
    """Return the name of a thread that executed the program at ``path``, None if that is unreadable.

    It is the last part of the path (begin_new_exec() of fs/exec.c). That of a program which was executed by
    its descriptor, /dev/fd/N, is N before Linux 6.14, and the file's own name since, which the event lacks.
    """
    return None if path is None else path.rpartition(b"/")[2][:COMM_BYTES]


def _fixed(field: Field, names: Names) -> Read:
    def read(data: Buffer, start: int, end: int, tid: int) -> bytes:
        return _text(data, start + field.offset, start + field.offset + field.size)

    return read


def _located(field: Field, names: Names) -> Read:
    return lambda data, start, end, tid: located(field, data, start, start + field.offset, end)


def _texts(field: Field, names: Names) -> Read:
    """Return the reader of an array of strings, in the form of the kernel's text."""

    def read(data: Buffer, start: int, end: int, tid: int) -> bytes:
        first = start + field.offset
        found = [located(field, data, start, at, end) for at in range(first, first + field.size, 4)]
        shown = [b"(fault)" if text is None else b'"' + text + b'"' for text in found]
        return b"{" + b",".join(shown) + b"}"

    return read


def _array(field: Field, names: Names) -> Read:
    """Return the reader of an array, in the form of the kernel's text (trace_probe.c: print_type_*)."""
    size, element = field.size // field.length, field.element
    code = CODES["signed" if element in ("s8", "s16", "s32", "s64") else "unsigned", size]
    numbers = struct.Struct(f"={field.length}{code}")
    show = _shown(element, names)

    def read(data: Buffer, start: int, end: int, tid: int) -> bytes:
        return b"{" + b",".join(map(show, numbers.unpack_from(data, start + field.offset))) + b"}"

    return read


_READERS: Mapping[str, Callable[[Field, Names], Read]] = {
    "unsigned": _number,
    "signed": _number,
    "char": _char,
    "symbol": _symbol,
    "comm": _comm,
    "program": _program,
    "text": _fixed,
    "dynamic": _located,
    "relative": _located,
    "texts": _texts,
    "array": _array,
}


def located(field: Field, data: Buffer, start: int, at: int, end: int) -> bytes | None:
    """Return the string at the offset and length that stand at ``at`` (trace_probe.h: make_data_loc)."""
    (place,) = NUMBER.unpack_from(data, at)
    length, offset = place >> 16, place & 0xFFFF
    first = at + 4 + offset if field.kind == "relative" else start + offset
    if length == 0 and field.fault:
        return None
    if first + length > end:
        return None
    return _text(data, first, first + length)


def _text(data: Buffer, start: int, end: int) -> bytes:
    return bytes(data[start:end]).partition(b"\0")[0]


def _shown(element: str, names: Names) -> Callable[[int], bytes]:
    if element == "symbol":
        return lambda address: names.symbol(address) or b"0x%x" % address
    if element == "char":
        return lambda value: b"'%c'" % value
    if element.startswith("x"):
        return lambda value: b"0x%x" % value
    return lambda value: b"%d" % value
