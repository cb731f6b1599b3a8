"""Encodes the parts that all messages of protobuf are made of.

A field is its tag (the field's number << 3 | its wire type), for a text or a message its length, and its
value.
"""

from collections.abc import Iterable


def field(number: int, value: bytes) -> bytes:
    """Return a field that has a length."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def packed(number: int, values: Iterable[int]) -> bytes:
    """Return a repeated field of signed numbers (sint32, sint64); nothing if there are none."""
    value = b"".join(map(signed, values))
    return field(number, value) if value else b""


def signed(value: int) -> bytes:
    """Return a signed number of 64 bits in the form of sint32 and sint64, small where it is near to 0."""
    return varint(value << 1 ^ value >> 63)


def varint(value: int) -> bytes:
    """Return an unsigned number, 7 bits a byte, the lowest first."""
    if value < 0x80:
        return value.to_bytes(1, "little")
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
