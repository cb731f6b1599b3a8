"""Enumerators from BTF: the names of an enum's values, and the values of names."""

from collections.abc import Collection, Iterator

from kprobe_exporter.btf import types as btf
from kprobe_exporter.btf.types import Record, Types, damaged
from kprobe_exporter.model.values import MAX_ERRNO

ENUMS = (btf.ENUM, btf.ENUM64)
_MOST = 20_000  # enumerators of one enum; bounds the cost of damaged data
_LONGEST_CHAIN = 32
_LAST_UNSIGNED = (1 << 32) - MAX_ERRNO - 1


def enumerators(types: Types, name: str) -> dict[int, str] | None:
    """Return the names of the values of an enum, or of a typedef of one; None if there is none of this name.

    A name loses what it shares with the enum's, as SKB_DROP_REASON_NO_SOCKET of ``enum skb_drop_reason`` does
    to become NO_SOCKET. The first name of a value counts.
    """
    for number in types.find(name, (*ENUMS, btf.TYPEDEF)):
        record = _plain(types, number)
        if record is not None and record.kind in ENUMS and record.vlen:
            found: dict[int, str] = {}
            prefix = f"{name}_".upper()
            for offset, value in _values(record):
                text = types.text(offset)
                found.setdefault(value, text.removeprefix(prefix) or text)
            return found
    return None


def constants(types: Types, names: Collection[str]) -> dict[str, int]:
    """Return the values of the enumerators of these names, of any enum; unknown ones are omitted."""
    offsets = {offset: name for name in names for offset in types.offsets(name)}
    found: dict[str, int] = {}
    for number in types.numbers(ENUMS) if offsets else ():
        for offset, value in _values(types.record(number)):
            if offset in offsets:
                found.setdefault(offsets[offset], value)
    return found


def is_signed(types: Types, record: Record) -> bool:
    """Return whether an enum has a sign, by its flag.

    Before Linux 6.0 BTF marks none. An enum of 32 bits has a sign there if one of its values is from -4095 to
    -1. On 6.1, 6.12 and 7.2 this agrees with the flag in all but 6 to 8 enums, most of which have a value ~0.
    """
    if record.flag or record.kind != btf.ENUM:
        return record.flag
    return any(value > _LAST_UNSIGNED for _, value in _values(record)) and not types.marks_signs


def enum_names(types: Types) -> list[str]:
    """Return the names of all enums."""
    return types.names(ENUMS)


def _plain(types: Types, number: int) -> Record | None:
    """Return the type behind typedefs, None for void."""
    for _ in range(_LONGEST_CHAIN):
        record = types.record(number)
        if record.kind != btf.TYPEDEF:
            return record
        if not record.value:
            return None
        number = record.value
    raise damaged("a type leads to itself")


def _values(record: Record) -> Iterator[tuple[int, int]]:
    """Yield each enumerator's name, as the offset of a string, and its value.

    They are ``struct btf_enum`` with 32 bits, and ``struct btf_enum64``; the flag says that they are signed.
    """
    if record.vlen > _MOST:
        raise damaged("an enum has too many values")
    size, bits = (2, 32) if record.kind == btf.ENUM else (3, 64)
    for at in range(record.at, record.at + size * record.vlen, size):
        offset, low, *high = record.words[at : at + size]
        value = low + (high[0] << 32 if high else 0)
        # Before Linux 6.0 no enum had the flag: negative values are large ones then, as ``enumerator`` knows.
        yield offset, value - (1 << bits) if record.flag and value >> bits - 1 else value
