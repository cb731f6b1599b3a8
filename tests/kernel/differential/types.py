"""What becomes of a 64-bit register that is read as a type, and the numbers that a type can have."""

from collections.abc import Mapping
from types import MappingProxyType

_RETURNED = {"int": "s32", "long": "s64", "ssize_t": "s64"}
"""The types of return values, as types of ``fetch``."""

TYPES = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "x8", "x16", "x32", "x64")


def _range(type_: str) -> tuple[int, int]:
    bits = int(type_[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if type_[0] == "s" else (0, (1 << bits) - 1)


RANGES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {type_: _range(type_) for type_ in TYPES} | {name: _range(type_) for name, type_ in _RETURNED.items()}
)


def read_as(register: int, type_: str) -> int:
    """The number that a register holds if it is read as this type."""
    low, high = RANGES[type_]
    return (register - low) % (high - low + 1) + low
