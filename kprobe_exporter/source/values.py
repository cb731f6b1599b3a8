"""Reads single fields of a binary record, for the records that the engine hands to Python."""

import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Protocol, TypeAlias

from kprobe_exporter.model.record_layout import Field
from kprobe_exporter.model.values import COMM_BYTES, Value, is_address

Buffer: TypeAlias = bytes | bytearray | memoryview
Read: TypeAlias = Callable[[Buffer, int, int, int], Value]
"""Takes a page, where the record starts and ends in it, and its thread's id."""

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
    read = _plain(field, names)
    return _guarded(read, field.guards) if field.guards else read


def _guarded(read: Read, guards: tuple[int, ...]) -> Read:
    """Return the function that gives None where a pointer on the way to the value is not an address."""

    def guarded(data: Buffer, start: int, end: int, tid: int) -> Value:
        pointers = (ADDRESS.unpack_from(data, start + guard)[0] for guard in guards)
        return read(data, start, end, tid) if all(map(is_address, pointers)) else None

    return guarded


def _plain(field: Field, names: Names) -> Read:
    if field.kind == "array":
        return _array(field, names)
    at = field.offset
    if field.kind in ("unsigned", "signed"):
        number = struct.Struct(
            (">" if field.network else "=") + _code(field.size, signed=field.kind == "signed")
        )
        return lambda data, start, end, tid: number.unpack_from(data, start + at)[0]
    readers: Mapping[str, Read] = {
        "char": lambda data, start, end, tid: bytes(data[start + at : start + at + 1]),
        "symbol": lambda data, start, end, tid: names.symbol(ADDRESS.unpack_from(data, start + at)[0]),
        "comm": lambda data, start, end, tid: names.comm(tid),
        "program": lambda data, start, end, tid: program_name(_located(field, data, start, start + at, end)),
        "text": lambda data, start, end, tid: _text(data, start + at, start + at + field.size),
        "rest": lambda data, start, end, tid: _text(data, start + at, end),
        "dynamic": lambda data, start, end, tid: (
            None if _overlaps(field, data, start, at) else _located(field, data, start, start + at, end)
        ),
        "relative": lambda data, start, end, tid: _located(field, data, start, start + at, end),
        "texts": lambda data, start, end, tid: _texts(field, data, start, end),
        "vector": lambda data, start, end, tid: _vector(field, data, start, end),
    }
    return readers[field.kind]


def _code(size: int, *, signed: bool) -> str:
    """Return the format of a number in the module struct, by its size in bytes."""
    code = {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
    return code.lower() if signed else code


def program_name(path: bytes | None) -> bytes | None:
    """Return the name of a thread that executed the program at ``path``, None if that is unreadable.

    It is the last part of the path (begin_new_exec() of fs/exec.c). For a program that was executed by its
    descriptor, /dev/fd/N, it is N before Linux 6.14. Since then it is the file's own name, which the event
    lacks.
    """
    return None if path is None else path.rpartition(b"/")[2][:COMM_BYTES]


def _texts(field: Field, data: Buffer, start: int, end: int) -> bytes:
    """Return an array of strings in the form of the kernel's text."""
    found = _strings(field, data, start, end)
    return b"{" + b",".join(b"(fault)" if text is None else b'"' + text + b'"' for text in found) + b"}"


def _strings(field: Field, data: Buffer, start: int, end: int) -> list[bytes | None]:
    """Return the strings of an array, each None if it is unreadable.

    The kernel stores them one after another, and ends at an address in the array that it cannot read. It
    then leaves the later places as they were, and stores the next argument at the place of the first string
    (process_fetch_insn_bottom() of kernel/trace/trace_probe_tmpl.h). So all are None unless each is where
    the one before it ends. On Linux 5.10 the place of a string that it cannot read has the length of the
    rest of the record. The next string begins at the same offset.
    """
    first = start + field.offset
    places = list(struct.unpack_from(f"={field.length}I", data, first))
    if field.next:
        places += NUMBER.unpack_from(data, start + field.next)
    if any(_start(after) not in (_start(one), _end(one)) for one, after in pairwise(places)):
        return [None] * field.length
    stored = [_end(one) == _start(after) for one, after in pairwise(places)]
    stored += [True] * (field.length - len(stored))
    found = zip(stored, range(first, first + field.size, 4), strict=True)
    return [_located(field, data, start, at, end) if there else None for there, at in found]


def _vector(field: Field, data: Buffer, start: int, end: int) -> bytes | None:
    """Return the strings of an argv joined by blanks, with ``...`` for further ones.

    None if none is readable. An unreadable one is ``?``, and so is an empty one before Linux 6.16, whose
    strncpy_from_user_nofault() returned 0 (mm/maccess.c).
    """
    [guard] = field.guards
    pointers = struct.unpack_from(f"={field.length + 1}Q", data, start + guard)
    length = next((number for number, pointer in enumerate(pointers) if not pointer), len(pointers))
    found = _strings(field, data, start, end)[:length]
    texts = [b"?" if text is None else text for text in found]
    more = [b"..."] if length > field.length else []
    return b" ".join(texts + more) if any(text is not None for text in found) else None


def _array(field: Field, names: Names) -> Read:
    """Return the reader of an array, in the form of the kernel's text (trace_probe.c: print_type_*)."""
    size, element = field.size // field.length, field.element
    code = _code(size, signed=element in ("s8", "s16", "s32", "s64"))
    numbers = struct.Struct(f"{'>' if field.network else '='}{field.length}{code}")
    show = _shown(element, names)

    def read(data: Buffer, start: int, end: int, tid: int) -> bytes:
        return b"{" + b",".join(map(show, numbers.unpack_from(data, start + field.offset))) + b"}"

    return read


def _start(place: int) -> int:
    """Return the offset of a string from the record's start (trace_probe.h: make_data_loc)."""
    return place & 0xFFFF


def _end(place: int) -> int:
    return _start(place) + (place >> 16)


def _overlaps(field: Field, data: Buffer, start: int, at: int) -> bool:
    """Whether the string whose place is at ``at`` ends behind the start of the next one: see Field."""
    if not field.next:
        return False
    (place,), (after,) = NUMBER.unpack_from(data, start + at), NUMBER.unpack_from(data, start + field.next)
    return _end(place) > _start(after)


def _located(field: Field, data: Buffer, start: int, at: int, end: int) -> bytes | None:
    """Return the string at the offset and length that stand at ``at`` (trace_probe.h: make_data_loc)."""
    (place,) = NUMBER.unpack_from(data, at)
    length, offset = place >> 16, place & 0xFFFF
    first = at + 4 + offset if field.kind == "relative" else start + offset
    if (length == 0 and field.fault) or first + length > end:
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
