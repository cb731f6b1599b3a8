"""Structures and unions from BTF: their names, their members, and how a value of a type is read."""

import difflib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kprobe_exporter.btf import types as btf
from kprobe_exporter.btf.enums import is_signed
from kprobe_exporter.btf.prototypes import spelled
from kprobe_exporter.btf.types import Record, Types, damaged

STRUCTURES = (btf.STRUCT, btf.UNION)
NETWORK_ORDER: Mapping[str, int] = {"__be16": 2, "__be32": 4, "__be64": 8}
"""Typedefs of include/uapi/linux/types.h, with their bytes: big-endian on every machine."""

_THROUGH = (btf.CONST, btf.VOLATILE, btf.RESTRICT, btf.TYPE_TAG)
_POINTER_BYTES = 8
_SIGNED = 1 << 24  # BTF_INT_SIGNED
_BITS = (8, 16, 32, 64)

# These limits are far above what any kernel has. They bound the cost of damaged data.
_LONGEST_CHAIN = 32
_DEEPEST = 16
_MOST_MEMBERS = 20_000


class Row(NamedTuple):
    """A member of a structure: its offset in bits, and its width in bits if it is a bit field, else 0."""

    name: str
    type: int
    offset: int
    width: int


class Structures:
    """The structures in some types: those of the kernel, or of a module with the kernel's behind them.

    Types are numbers, 0 for void. All methods raise GrammarError for damaged data. A structure is searched
    for once, and its members are read once: ``struct sock`` has 120.
    """

    def __init__(self, types: Types) -> None:
        self._types = types
        self._named: dict[str, tuple[int, ...]] = {}
        self._members: dict[int, tuple[Row, ...]] = {}

    def named(self, name: str) -> tuple[int, ...]:
        """Return the structures, unions and typedefs of one of this name; a module's own hide the kernel's.

        A kernel has about 20 names of several structures, each in source files that do not know the other.
        """
        if name not in self._named:
            found = [one for one in self._find(name, *STRUCTURES, btf.TYPEDEF) if self.is_structure(one)]
            self._named[name] = tuple(dict.fromkeys(map(self.plain, found)))
        return self._named[name]

    def _find(self, name: str, *kinds: int) -> list[int]:
        found = self._types.find(name, kinds)
        return [one for one in found if self._types.is_own(one)] or found

    def near(self, name: str) -> str:
        """Return ``, did you mean 'sock'?`` for the nearest structures, or nothing."""
        return nearest(name, {name: name for name in self._types.names(STRUCTURES)})

    def record(self, number: int) -> Record | None:
        """Return a type without qualifiers, tags and typedefs; None for void."""
        plain = self.plain(number)
        return self._types.record(plain) if plain else None

    def is_structure(self, number: int) -> bool:
        """Return whether a type is a structure or a union with a body."""
        record = self.record(number)
        return record is not None and record.kind in STRUCTURES

    def pointed(self, number: int) -> int | None:
        """Return the structure to which a type points, None for another type."""
        record = self.record(number)
        target = self.complete(record.value) if record is not None and record.kind == btf.PTR else 0
        return target if target and self.is_structure(target) else None

    def spelled(self, number: int) -> str:
        """Return a type as C spells it: ``struct sock *``."""
        return spelled(self._types, number)

    def rows(self, number: int) -> tuple[Row, ...]:
        """Return the members of a structure, those of its anonymous members in their place."""
        plain = self.plain(number)
        if plain not in self._members:
            self._members[plain] = tuple(self._rows(plain, 0, _DEEPEST))
        return self._members[plain]

    def _rows(self, number: int, offset: int, left: int) -> Iterator[Row]:
        if not left:
            raise damaged("a structure holds itself")
        for row in self._declared(self._types.record(number)):
            if row.name:
                yield row._replace(offset=offset + row.offset)
            elif self.is_structure(row.type):
                yield from self._rows(self.plain(row.type), offset + row.offset, left - 1)

    def _declared(self, record: Record) -> Iterator[Row]:
        """Yield the members as they are declared (``struct btf_member``); anonymous ones have no name."""
        if record.vlen > _MOST_MEMBERS:
            raise damaged("a structure has too many members")
        for at in range(record.at, record.at + 3 * record.vlen, 3):
            name, number, offset = record.words[at : at + 3]
            width = 0
            if record.flag:
                width, offset = offset >> 24, offset & 0xFFFFFF
            inner = self.record(number) if not width else None
            if inner is not None and inner.kind == btf.INT:
                # Without kind_flag, a bit field is an int with less bits than its bytes have.
                bits, first = _int(inner)[:2]
                if bits != 8 * inner.value:
                    width, offset = bits, offset + first
            yield Row(self._types.text(name), number, offset, width)

    def each_member(self) -> Iterator[tuple[str, Row]]:
        """Yield the members of all structures whose name is theirs alone, each with the structure's name."""
        numbers: dict[str, list[int]] = {}
        for number in self._types.numbers(STRUCTURES):
            if name := self._types.record(number).name:
                numbers.setdefault(self._types.text(name), []).append(number)
        for text, of_name in numbers.items():
            if len(of_name) == 1:
                yield from ((text, row) for row in self.rows(of_name[0]))

    def plain(self, number: int) -> int:
        """Return the number of a type without qualifiers, tags and typedefs."""
        for _ in range(_LONGEST_CHAIN):
            if not number:
                return 0
            record = self._types.record(number)
            if record.kind not in (*_THROUGH, btf.TYPEDEF):
                return number
            number = record.value
        raise damaged("a type leads to itself")

    def complete(self, number: int) -> int:
        """Return the structure that a declaration without a body stands for, else the type itself."""
        record = self.record(number)
        if record is None or record.kind != btf.FWD:
            return self.plain(number)
        found = self._find(self._types.text(record.name), btf.UNION if record.flag else btf.STRUCT)
        return found[0] if len(found) == 1 else self.plain(number)

    def size(self, number: int) -> int | None:
        """Return the size of a type in bytes, None if it has none that is known."""
        times = 1
        for _ in range(_LONGEST_CHAIN):
            record = self.record(self.complete(number))
            if record is None or record.kind in (btf.FUNC_PROTO, btf.FWD):
                return None
            if record.kind != btf.ARRAY:
                return times * (_POINTER_BYTES if record.kind == btf.PTR else record.value)
            number, _, count = record.words[record.at : record.at + 3]
            times *= count
        raise damaged("a type leads to itself")

    def number(self, number: int) -> str | None:
        """Return the kernel's fetch type of a number or an address, None for another type."""
        record = self.record(number)
        if record is not None and record.kind == btf.PTR:
            return "x64"
        bits, signed = 0, False
        if record is not None and record.kind == btf.INT:
            bits, _, signed = _int(record)
        elif record is not None and record.kind in (btf.ENUM, btf.ENUM64):
            bits, signed = 8 * record.value, is_signed(self._types, record)
        return f"{'s' if signed else 'u'}{bits}" if bits in _BITS else None

    def signed(self, number: int) -> bool | None:
        """Return whether an int or an enum has a sign, None for another type."""
        record = self.record(number)
        if record is not None and record.kind in (btf.ENUM, btf.ENUM64):
            return is_signed(self._types, record)
        return _int(record)[2] if record is not None and record.kind == btf.INT else None

    def is_char(self, number: int) -> bool:
        """Return whether a type is C's ``char``. ``unsigned char`` and ``u8`` are numbers."""
        record = self.record(number)
        return record is not None and record.kind == btf.INT and self._types.text(record.name) == "char"

    def network_bytes(self, number: int) -> int:
        """Return the width in bytes of a type in network byte order, 0 for another."""
        for _ in range(_LONGEST_CHAIN):
            record = self._types.record(number) if number else None
            if record is None or record.kind not in (*_THROUGH, btf.TYPEDEF):
                return 0
            if record.kind == btf.TYPEDEF and (name := self._types.text(record.name)) in NETWORK_ORDER:
                return NETWORK_ORDER[name]
            number = record.value
        return 0


def _int(record: Record) -> tuple[int, int, bool]:
    """Return an int's width in bits, the bit at which it begins, and whether it has a sign."""
    details = record.words[record.at]
    return details & 0xFF, details >> 16 & 0xFF, bool(details & _SIGNED)


def nearest(word: str, words: Mapping[str, str]) -> str:
    """Return ``, did you mean 'sock'?`` for the nearest of ``words``, each with how it is to be written."""
    near = [repr(words[name]) for name in difflib.get_close_matches(word, words, n=2)]
    return f", did you mean {' or '.join(near)}?" if near else ""
