"""What decoders take and give as text: numbers, the kernel's arrays, and names without odd characters."""

import re

from kprobe_exporter.model.values import Value

NUMBER = re.compile(rb"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})")

MOST_ELEMENTS = 64
"""MAX_ARRAY_LEN of kernel/trace/trace_probe.h."""

LONGEST_ARRAY = 2 + MOST_ELEMENTS * 21
"""Bytes: braces, and of each element the digits of 64 bits, a sign or a comma."""


def number(value: Value) -> int | None:
    """The value if it is a number; a text's if it is one in decimal or, after ``0x``, in hexadecimal."""
    if not isinstance(value, bytes):
        return value
    if not NUMBER.fullmatch(value):
        return None
    return int(value, 16 if b"x" in value or b"X" in value else 10)


def unsigned(value: Value, bits: int) -> int | None:
    """A number of so many bits without its sign, also where it was read as a signed one."""
    found = number(value)
    if found is None or not -(1 << bits - 1) <= found < 1 << bits:
        return None
    return found % (1 << bits)


def array(text: bytes) -> list[int] | None:
    """The numbers of an array as the kernel prints it: ``{127,0,0,1}``, ``{0x7f,0x0,0x0,0x1}``."""
    if len(text) > LONGEST_ARRAY or not (text.startswith(b"{") and text.endswith(b"}")):
        return None
    found = [number(element) for element in text[1:-1].split(b",")]
    elements = [element for element in found if element is not None]
    return elements if len(elements) == len(found) else None


def printable(name: bytes) -> str:
    """A name as text: what is no UTF-8, no printable character or a line's end is escaped."""
    text = name.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
