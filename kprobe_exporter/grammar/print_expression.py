"""The expressions of a tracepoint's ``print fmt``: numbers, and words for numbers, of one field's value."""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Result: TypeAlias = int | str
"""The result of an expression: a number, or words."""

HIGHEST = 200
"""Operators that work on each other's results."""

JOINED = "|"
"""Stands between flags. The kernel may write something else there."""

BITS: Mapping[str, int] = {
    **dict.fromkeys(("u8", "__u8", "unsigned char"), 8),
    **dict.fromkeys(("u16", "__u16", "unsigned short"), 16),
    **dict.fromkeys(("u32", "__u32", "unsigned int", "unsigned", "gfp_t"), 32),
    **dict.fromkeys(("u64", "__u64", "unsigned long", "unsigned long long"), 64),
}
"""The widths of unsigned types to which a cast cuts a number; other casts change nothing."""

_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MASK = (1 << 64) - 1
"""The tables of words compare numbers as ``unsigned long``."""

_MOST_BITS = 63
_UNARY: Mapping[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": operator.not_,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A part of an argument: the ``fields`` of the record that it reads, and its operands.

    ``compute`` takes the value of the one field that it reads, and may raise ArithmeticError; it is None for
    what is not known here, such as a call of one of the kernel's functions. ``has_words``: it may give words;
    ``has_table``: from one of the kernel's tables.
    """

    fields: frozenset[str] = frozenset()
    compute: Callable[[int], Result] | None = None
    has_words: bool = False
    has_table: bool = False
    parts: "tuple[Expression, ...]" = ()
    height: int = 1

    def words_of(self, field: str) -> "Iterator[Expression]":
        """Yield the largest parts that give words for this field, and depend on no other one."""
        if self.has_words and self.compute is not None and self.fields == {field}:
            yield self
            return
        for part in self.parts:
            yield from part.words_of(field)


def constant(value: Result) -> Expression:
    """Return a number or a string as an expression."""
    return Expression(compute=lambda _: value, has_words=isinstance(value, str))


def _made(
    parts: tuple[Expression, ...],
    compute: Callable[[int], Result] | None,
    *,
    has_words: bool = False,
    has_table: bool = False,
) -> Expression:
    """Return an expression of some parts; a constant if they are."""
    fields = frozenset[str]().union(*(part.fields for part in parts))
    height = 1 + max((part.height for part in parts), default=0)
    found = Expression(fields, compute, has_words, has_table, parts, height)
    value = None if has_words else folded(found)
    return found if value is None else constant(value)


def unknown(parts: tuple[Expression, ...]) -> Expression:
    """Return an expression whose parts are known, and not what it makes of them."""
    return _made(parts, None)


def folded(found: Expression) -> Result | None:
    """Return the value of a constant expression, None for another one."""
    if found.fields or found.compute is None:
        return None
    try:
        return found.compute(0)
    except ArithmeticError:
        return None


def _number(value: Result) -> int:
    if isinstance(value, str):
        raise ArithmeticError
    return value


def choice(test: Expression, yes: Expression, no: Expression) -> Expression:
    """Return ``TEST ? YES : NO``."""
    parts, chosen = (test, yes, no), test.compute
    first, second = yes.compute, no.compute
    if chosen is None or first is None or second is None:
        return unknown(parts)
    return _made(
        parts,
        lambda value: first(value) if _number(chosen(value)) else second(value),
        has_words=yes.has_words or no.has_words,
        has_table=yes.has_table or no.has_table,
    )


def joined(sign: str, left: Expression, right: Expression) -> Expression:
    """Return two operands with a binary operator of C between them."""
    parts, one, other = (left, right), left.compute, right.compute
    if one is None or other is None or left.has_words or right.has_words:
        return unknown(parts)

    def logical(value: int) -> int:
        first = bool(_number(one(value)))
        return int(first if first is (sign == "||") else bool(_number(other(value))))

    def binary(value: int) -> int:
        a, b = _number(one(value)), _number(other(value))
        if sign in ("<<", ">>") and not 0 <= b <= _MOST_BITS:
            raise ArithmeticError
        found = int(_BINARY[sign](a, b))
        return found if -MASK <= found <= MASK else found & MASK

    if sign in ("&&", "||"):
        return _made(parts, logical)
    return _made(parts, binary) if sign in _BINARY else unknown(parts)


def applied(sign: str, operand: Expression) -> Expression:
    """Apply a unary operator; an address and what is behind one are not known here."""
    inner, change = operand.compute, _UNARY.get(sign)
    if inner is None or change is None or operand.has_words:
        return unknown((operand,))
    return _made((operand,), lambda value: int(change(_number(inner(value)))))


def cast(name: str, operand: Expression) -> Expression:
    """Return an operand cut to the width of a type."""
    bits, inner = BITS.get(name), operand.compute
    if bits is None or inner is None or operand.has_words:
        return operand
    mask = (1 << bits) - 1
    return _made((operand,), lambda value: _number(inner(value)) & mask)


def table(operand: Expression, rows: list[tuple[int, str]], *, flags: bool) -> Expression:
    """Return what trace_print_symbols_seq() or trace_print_flags_seq() of kernel/trace/trace_output.c prints.

    If they print a number, this gives it.
    """
    inner, words = operand.compute, dict(reversed(rows))
    if inner is None or operand.has_words:
        return unknown((operand,))

    def symbolic(value: int) -> Result:
        number = _number(inner(value))
        return words.get(number & MASK, number)

    def flagged(value: int) -> Result:
        number = _number(inner(value))
        left, found = number & MASK, []
        for mask, word in rows:
            if left and left & mask == mask:
                found.append(word)
                left &= ~mask
        if not found:
            return number
        return JOINED.join([*found, *([f"{left:#x}"] if left else [])])

    return _made((operand,), flagged if flags else symbolic, has_words=bool(rows), has_table=True)
