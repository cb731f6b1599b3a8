"""Evaluates conditions and computed values in Python, one field mapping at a time.

The event engine (engine/expr.c) does the same for pages; tests hold both to the same results.
"""

from collections.abc import Callable, Collection, Mapping
from operator import and_, eq, ge, gt, le, lt, ne, or_, xor
from typing import TypeAlias

from kprobe_exporter.model.condition import COMPARISONS, SHIFTS, Condition, is_unsigned

Event: TypeAlias = Mapping[str, int | float | bytes | None]
Evaluate: TypeAlias = Callable[[Event], int | None]
"""Returns the value for an event, None where it is missing; a condition gives 1 or 0."""

BITS = 64
_MASK = (1 << BITS) - 1

_COMPARE: Mapping[str, Callable[[int | float, int | float], bool]] = {
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
    "&": lambda value, bits: bool(int(value) & int(bits)),
}


def compile_condition(condition: Condition, unsigned: Collection[str] = ()) -> Evaluate:
    """Return the function that evaluates; ``unsigned`` names the fields that are unsigned 64-bit numbers."""
    made: Evaluate
    match condition:
        case ("all" | "any", operands):
            parts = [compile_condition(part, unsigned) for part in operands]
            made = _chain(parts, decisive=condition[0] == "any")
        case ("not", operand):
            made = _not(compile_condition(operand, unsigned))
        case ("number", name, operator, literal):
            made = _number(name, operator, literal)
        case ("text", name, operator, text):
            made = _text(name, operator == "==", text)
        case ("match", name, pattern):
            made = _match(name, pattern.matches)
        case ("field", name):
            made = _field(name)
        case ("constant", constant):
            made = _constant(constant)
        case ("if", test, yes, no):
            made = _choice(test, yes, no, unsigned)
        case ("unary", operator, operand):
            made = _unary(operator, operand, unsigned)
        case ("binary", operator, left, right):
            made = _binary(operator, left, right, unsigned)
    return made


def _chain(parts: list[Evaluate], *, decisive: bool) -> Evaluate:
    """``&&``, which an operand that is false decides, or ``||``, which one that is true does."""

    def chain(event: Event) -> int | None:
        missing = False
        for part in parts:
            value = part(event)
            if value is None:
                missing = True
            elif bool(value) is decisive:
                return int(decisive)
        return None if missing else int(not decisive)

    return chain


def _not(operand: Evaluate) -> Evaluate:
    return lambda event: None if (value := operand(event)) is None else int(not value)


def _text(name: str, equal: bool, text: bytes) -> Evaluate:
    return lambda event: int((event.get(name) == text) is equal)


def _match(name: str, matches: Callable[[bytes], bool]) -> Evaluate:
    return lambda event: int(isinstance(value := event.get(name), bytes) and matches(value))


def _field(name: str) -> Evaluate:
    return lambda event: value if isinstance(value := event.get(name), int) else None


def _constant(value: int) -> Evaluate:
    return lambda event: value


def _number(name: str, operator: str, literal: int | float) -> Evaluate:
    compare, unequal = _COMPARE[operator], int(operator == "!=")

    def number(event: Event) -> int:
        value = event.get(name)
        return int(compare(value, literal)) if isinstance(value, int | float) else unequal

    return number


def _choice(test: Condition, yes: Condition, no: Condition, unsigned: Collection[str]) -> Evaluate:
    choose, first, second = (compile_condition(part, unsigned) for part in (test, yes, no))
    wrap = _wrap(is_unsigned(yes, unsigned) or is_unsigned(no, unsigned))

    def choice(event: Event) -> int | None:
        chosen = choose(event)
        if chosen is None:
            return None
        value = first(event) if chosen else second(event)
        return None if value is None else wrap(value)

    return choice


def _unary(operator: str, operand: Condition, unsigned: Collection[str]) -> Evaluate:
    inner = compile_condition(operand, unsigned)
    wrap = _wrap(is_unsigned(operand, unsigned))

    def unary(event: Event) -> int | None:
        value = inner(event)
        return None if value is None else wrap(-value if operator == "-" else ~value)

    return unary


def _binary(operator: str, left: Condition, right: Condition, unsigned: Collection[str]) -> Evaluate:
    first, second = compile_condition(left, unsigned), compile_condition(right, unsigned)
    # Both operands of a comparison are converted as those of an addition are; a shift's are not.
    wide = is_unsigned(left, unsigned) or (operator not in SHIFTS and is_unsigned(right, unsigned))
    wrap, compute = _wrap(wide), _OPERATIONS[operator]
    operand = _wrap(is_unsigned(right, unsigned)) if operator in SHIFTS else wrap

    def binary(event: Event) -> int | None:
        a, b = first(event), second(event)
        if a is None or b is None:
            return None
        value = compute(wrap(a), operand(b))
        return None if value is None else wrap(value)

    return binary


def _wrap(unsigned: bool) -> Callable[[int], int]:
    """Return the conversion to 64 bits, which keeps the lowest ones."""
    if unsigned:
        return lambda value: value & _MASK
    return lambda value: ((value + (1 << BITS - 1)) & _MASK) - (1 << BITS - 1)


def _divide(a: int, b: int) -> int | None:
    """Divide as C does, towards 0."""
    if b == 0:
        return None
    return abs(a) // abs(b) * (1 if (a < 0) is (b < 0) else -1)


def _remainder(a: int, b: int) -> int | None:
    """Return what a division towards 0 leaves, with the sign of ``a``."""
    return None if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


def _shift_left(a: int, b: int) -> int | None:
    return a << b if 0 <= b < BITS else None


def _shift_right(a: int, b: int) -> int | None:
    return a >> b if 0 <= b < BITS else None


_OPERATIONS: Mapping[str, Callable[[int, int], int | None]] = {
    **{sign: _COMPARE[sign] for sign in sorted(COMPARISONS)},
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "/": _divide,
    "%": _remainder,
    "&": and_,
    "|": or_,
    "^": xor,
    "<<": _shift_left,
    ">>": _shift_right,
    "min": min,
    "max": max,
}
