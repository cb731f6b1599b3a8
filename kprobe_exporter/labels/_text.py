"""Helpers that decoders share: numbers, the kernel's arrays, printable names, tables of names, no options."""

import re
from collections.abc import Callable

from kprobe_exporter.errors import name_text
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

NUMBER = re.compile(rb"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})")

MOST_ELEMENTS = 64  # MAX_ARRAY_LEN of kernel/trace/trace_probe.h
LONGEST_ARRAY = 2 + MOST_ELEMENTS * 21  # braces, and of each element the digits of 64 bits, a sign, a comma


def number(value: Value) -> int | None:
    """Return the number that the value is, or that its text is in decimal or, after ``0x``, hexadecimal."""
    if not isinstance(value, bytes):
        return value
    if not NUMBER.fullmatch(value):
        return None
    return int(value, 16 if b"x" in value or b"X" in value else 10)


def unsigned(value: Value, bits: int) -> int | None:
    """Return a number of ``bits`` bits as unsigned, also if it was read as a signed one."""
    found = number(value)
    if found is None or not -(1 << bits - 1) <= found < 1 << bits:
        return None
    return found % (1 << bits)


def array(text: bytes) -> list[int] | None:
    """Return the numbers of an array that the kernel printed: ``{127,0,0,1}``, ``{0x7f,0x0,0x0,0x1}``."""
    if len(text) > LONGEST_ARRAY or not (text.startswith(b"{") and text.endswith(b"}")):
        return None
    found = [number(element) for element in text[1:-1].split(b",")]
    elements = [element for element in found if element is not None]
    return elements if len(elements) == len(found) else None


def printable(name: bytes) -> str:
    """Return a name as text. Invalid UTF-8 and characters that do not print, line ends too, are escaped."""
    return name_text(name)


def numbered(names: str, first: int = 0) -> dict[int, str]:
    """Return the names by their numbers, which begin at ``first``; ``-`` is a number without a name."""
    return {index: name for index, name in enumerate(names.split(), first) if name != "-"}


def without_options(name: str, decode: Decoder) -> Callable[[object], Decoder]:
    """Return the function ``decoder`` of a module whose decoder is ``decode`` and takes no options."""

    def decoder(options: object) -> Decoder:
        if options is not None:
            raise ValueError(f"the decoder {name} takes no options: write 'decode: {name}'")
        return decode

    return decoder
