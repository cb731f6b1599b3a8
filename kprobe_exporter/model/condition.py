"""Conditions and computed values as plain data, as every way of reading events evaluates them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Number: TypeAlias = int | float
Condition: TypeAlias = (
    tuple[Literal["all", "any"], tuple["Condition", ...]]
    | tuple[Literal["not"], "Condition"]
    | tuple[Literal["number"], str, str, Number]
    | tuple[Literal["text"], str, str, bytes]
    | tuple[Literal["match"], str, "Pattern"]
    | tuple[Literal["field"], str]
    | tuple[Literal["constant"], int]
    | tuple[Literal["unary"], str, "Condition"]
    | tuple[Literal["binary"], str, "Condition", "Condition"]
    | tuple[Literal["if"], "Condition", "Condition", "Condition"]
)
"""A condition, or a value that is computed, by its kind.

``("number", FIELD, OPERATOR, NUMBER)``, ``("text", FIELD, OPERATOR, BYTES)`` and ``("match", FIELD,
PATTERN)`` compare a field as the kernel's filters do: a field that is missing, or of another type, fails
every comparison except ``!=``, and numbers are compared by their value.

All others compute as C does on 64-bit integers. They give a missing value if an operand is missing, if they
divide by 0, or if they shift by less than 0 or more than 63 bits. ``all`` and ``any`` are decided by one
operand if that decides; a missing operand that could decide makes the result missing. Conditions give 1 or 0;
a number is a condition that is true if the number is not 0.
"""

LONG_MAX = (1 << 63) - 1

COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
SHIFTS = frozenset({"<<", ">>"})


@dataclass(frozen=True)
class Pattern:
    """A pattern of strings for glob_match() of lib/glob.c, whose result is inverted if ``negated``.

    ``matches`` gives the same in Python.
    """

    glob: bytes
    negated: bool
    matches: Callable[[bytes], bool] = field(compare=False, repr=False)


class Computed(NamedTuple):
    """A field that is computed of others; ``fields`` are the ones that it reads."""

    name: str
    fields: tuple[str, ...]
    condition: Condition


def is_unsigned(condition: Condition, unsigned: Collection[str]) -> bool:
    """Return whether the value is an unsigned 64-bit number; ``unsigned`` names the fields that are.

    These are C's conversions where ``int`` has 64 bits: a narrower field is promoted to a signed number,
    which can hold all its values; an operation is unsigned if an operand is, a shift if its left one is.
    """
    found = False
    match condition:
        case ("field", name):
            found = name in unsigned
        case ("constant", value):
            found = value > LONG_MAX
        case ("unary", _, operand):
            found = is_unsigned(operand, unsigned)
        case ("binary", operator, left, right) if operator in SHIFTS:
            found = is_unsigned(left, unsigned)
        case ("binary", operator, left, right) if operator not in COMPARISONS:
            found = is_unsigned(left, unsigned) or is_unsigned(right, unsigned)
        case ("if", _, yes, no):
            found = is_unsigned(yes, unsigned) or is_unsigned(no, unsigned)
    return found


def fields_of(condition: Condition) -> frozenset[str]:
    """Return the names of the fields that it reads."""
    match condition:
        case ("number" | "text" | "match" | "field", name, *_):
            return frozenset({name})
    return frozenset[str]().union(*map(fields_of, parts(condition)))


def decided_by(condition: Condition, names: Collection[str]) -> Condition | None:
    """Return the operands of its ``all`` that read only fields of these names; None without any.

    If they do not hold, the condition does not hold either.
    """
    if condition[0] == "all":
        decided = tuple(one for part in condition[1] if (one := decided_by(part, names)))
        return ("all", decided) if decided else None
    return condition if fields_of(condition) <= set(names) else None


def parts(condition: Condition) -> tuple[Condition, ...]:
    """Return the operands that are conditions or values themselves."""
    match condition:
        case ("all" | "any", operands):
            return operands
        case ("not", operand) | ("unary", _, operand):
            return (operand,)
        case ("binary", _, left, right):
            return (left, right)
        case ("if", test, yes, no):
            return (test, yes, no)
    return ()
