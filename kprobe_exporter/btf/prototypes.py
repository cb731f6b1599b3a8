"""Prototypes of functions from BTF, and how the kernel fetches their arguments and return values."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from kprobe_exporter.btf import types as btf
from kprobe_exporter.btf.enums import is_signed
from kprobe_exporter.btf.types import damaged
from kprobe_exporter.model.values import ReturnType

Type: TypeAlias = ReturnType
"""A C type. ``name`` is its spelling: ``struct file *``, ``size_t``, ``int (*)(void *)``.

``fetch`` is None for void and for types that are not passed as a number in one register: a struct by value,
``__int128``, a float. BTF tells the width, so it is never a guess (``wide``).
"""


class Param(NamedTuple):
    """A parameter. The ``...`` of a variadic function is a parameter without a name.

    ``number`` is the N of ``$argN``, counted from 1. It is None for the first parameter that does not take
    exactly one register, such as a large struct, and for all after it: architectures pass those differently.
    """

    name: str
    type: Type
    number: int | None


class Prototype(NamedTuple):
    """The parameters and the return type of a function."""

    name: str
    params: tuple[Param, ...]
    returns: Type


def parameter(prototype: Prototype, name: str) -> tuple[int, Type] | None:
    """Return the N of a parameter's ``$argN``, and its type.

    None if there is no such parameter, or if its register is not known (``Param.number``).
    """
    for param in prototype.params:
        if name and param.name == name and param.number:
            return param.number, param.type
    return None


def symbols_of(names: Iterable[str]) -> set[str]:
    """Return those names that a function may have."""
    return {name for name in names if _SYMBOL.fullmatch(name)}


def prototypes_in(types: btf.Types, names: Iterable[str]) -> dict[str, Prototype]:
    """Return the prototypes of ``names``; of a module's types, those of its own functions alone.

    A name of several functions with different prototypes is omitted. Raises GrammarError for damaged types.
    """
    found = {}
    for name in names:
        numbers = types.prototypes(name)
        if not 0 < len(numbers) <= _MOST_NAMESAKES:
            continue
        first, *others = (_Reader(types).prototype(name, number) for number in numbers)
        if all(other == first for other in others):
            found[name] = first
    return found


_SYMBOL = re.compile(r"[\w.$]+", re.ASCII)
_QUALIFIERS = {btf.CONST: "const", btf.VOLATILE: "volatile", btf.RESTRICT: "restrict"}
_TAGGED = {btf.STRUCT: "struct", btf.UNION: "union", btf.ENUM: "enum", btf.ENUM64: "enum"}
_BITS = (8, 16, 32, 64)
_SIGNED = 1 << 24  # BTF_INT_SIGNED

_SPELLINGS = {
    "long int": "long",
    "long unsigned int": "unsigned long",
    "short int": "short",
    "short unsigned int": "unsigned short",
    "long long int": "long long",
    "long long unsigned int": "unsigned long long",
    "_Bool": "bool",
}
"""gcc's spelling, and that of the kernel's sources and of clang."""

# These limits are far above what any kernel has. They bound the cost of damaged data.
_LONGEST_CHAIN = 32
_MOST_STEPS = 4096
_MOST_NAMESAKES = 8


def spelled(types: btf.Types, number: int) -> str:
    """Return a type as C spells it, ``struct sock *``. Raises GrammarError for damaged data."""
    return _Reader(types)._spelled(number)


class _Reader:
    """Reads one prototype in at most ``_MOST_STEPS`` steps."""

    def __init__(self, types: btf.Types) -> None:
        self._types = types
        self._left = _MOST_STEPS

    def prototype(self, name: str, number: int) -> Prototype:
        record = self._record(number)
        if record.kind != btf.FUNC_PROTO:
            raise damaged(
                f"the function {name} leads to a type of kind {record.kind}, which is not a prototype"
            )
        params: list[Param] = []
        in_registers = True
        for count, (param, of) in enumerate(self._params(record), 1):
            plain = self._plain(of)
            type_ = self._type(of, plain) if of else Type("...", None)
            in_one = plain and plain.kind in (btf.STRUCT, btf.UNION) and 0 < plain.value <= 8
            in_registers &= type_.fetch is not None or bool(in_one)
            params.append(Param(param, type_, count if in_registers else None))
        return Prototype(name, tuple(params), self._type(record.value, self._plain(record.value)))

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise damaged("a prototype leads to too many types")

    def _record(self, number: int) -> btf.Record:
        self._step()
        return self._types.record(number)

    def _params(self, proto: btf.Record) -> Iterator[tuple[str, int]]:
        """Yield the name and the type of each parameter. Type 0 is ``...``."""
        for at in range(proto.at, proto.at + 2 * proto.vlen, 2):
            self._step()
            name, number = proto.words[at : at + 2]
            yield self._types.text(name), number

    def _plain(self, number: int) -> btf.Record | None:
        """Return a type without qualifiers, type tags and typedefs; None for void."""
        for _ in range(_LONGEST_CHAIN):
            if not number:
                return None
            record = self._record(number)
            if record.kind not in (*_QUALIFIERS, btf.TYPEDEF, btf.TYPE_TAG):
                return record
            number = record.value
        raise damaged("a type leads to itself")

    def _type(self, number: int, plain: btf.Record | None) -> Type:
        name = self._spelled(number)
        bits, signed = 0, False
        if plain and plain.kind == btf.PTR:
            return Type(name, "x64", pointer=True)
        if plain and plain.kind == btf.INT:
            details = plain.words[plain.at]
            bits, signed = details & 0xFF, bool(details & _SIGNED)
        elif plain and plain.kind in (btf.ENUM, btf.ENUM64):
            bits, signed = 8 * plain.value, is_signed(self._types, plain)
        if bits not in _BITS:
            return Type(name, None)
        return Type(name, f"{'s' if signed else 'u'}{bits}", signed=signed)

    def _spelled(self, number: int, longest: int = _LONGEST_CHAIN) -> str:
        """Return the type as a C declaration without a name. ``inner`` stands in place of the name."""
        inner = ""
        qualifiers: list[str] = []
        for left in range(longest, 0, -1):
            if not number:
                return _joined(*qualifiers, "void", inner)
            record = self._record(number)
            kind, number = record.kind, record.value
            if kind in _QUALIFIERS:
                qualifiers.append(_QUALIFIERS[kind])
            elif kind == btf.PTR:
                inner = "*" + _joined(*qualifiers, inner)
                qualifiers.clear()
            elif kind == btf.ARRAY:
                number, _, count = record.words[record.at : record.at + 3]
                inner = f"{_grouped(inner)}[{count}]"
            elif kind == btf.FUNC_PROTO:
                types = [number for _, number in self._params(record)]
                params = [self._spelled(number, left - 1) if number else "..." for number in types]
                inner = f"{_grouped(inner)}({', '.join(params) or 'void'})"
            elif kind != btf.TYPE_TAG:
                return _joined(*qualifiers, self._name(record), inner)
        raise damaged("a type leads to itself")

    def _name(self, record: btf.Record) -> str:
        name = self._types.text(record.name)
        if record.kind in _TAGGED:
            return f"{_TAGGED[record.kind]} {name or '{...}'}"
        if record.kind == btf.FWD:
            return f"{'union' if record.flag else 'struct'} {name}"
        if record.kind not in (btf.INT, btf.FLOAT, btf.TYPEDEF):
            raise damaged(f"a prototype leads to a type of kind {record.kind}")
        return _SPELLINGS.get(name, name)


def _joined(*words: str) -> str:
    return " ".join(filter(None, words))


def _grouped(inner: str) -> str:
    """Add parentheses if needed: ``int (*)[4]`` points to an array, ``int *[4]`` is an array of pointers."""
    return f"({inner})" if inner.startswith("*") else inner
