"""Encodes the parts that all messages of protobuf are made of.

A field is its tag (the field's number << 3 | its wire type), for a text or a message its length, and its
value.
"""


def field(number: int, value: bytes) -> bytes:
    """Return a field that has a length."""
    return varint(number << 3 | 2) + varint(len(value)) + value


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
