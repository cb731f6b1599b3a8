"""Conditions and computed values as the nodes of the engine: a tree in one list."""

from collections.abc import Callable, Collection, Sequence
from math import ceil, floor
from typing import Any, NamedTuple, TypeAlias

from kprobe_exporter.model.condition import COMPARISONS, Condition, Number, is_unsigned
from kprobe_exporter.source.engine_fields import FieldRef

RefOf: TypeAlias = Callable[[str], FieldRef]
"""Returns where the engine gets the value of a field."""

NO_NODE = -1

WITH_CONSTANT = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "==": "equal",
    "!=": "unequal",
    "&": "has_bits",
}
UNARY = {"-": "negate", "~": "invert"}
BINARY = {
    **{operator: f"is_{WITH_CONSTANT[operator]}" for operator in COMPARISONS},
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
    "%": "remainder",
    "&": "and_bits",
    "|": "or_bits",
    "^": "xor_bits",
    "<<": "shift_left",
    ">>": "shift_right",
    "min": "smaller",
    "max": "larger",
}


class EngineNode(NamedTuple):
    """A ``struct expr_node`` of engine.h, with the name of its operator in lower case."""

    op: str
    is_unsigned: bool = False
    first: int = 0
    noperands: int = 0
    field: FieldRef = FieldRef()
    value: int | bytes = 0


def add_nodes(
    nodes: list[EngineNode], conditions: Sequence[Condition], unsigned: Collection[str], ref_of: RefOf
) -> int:
    """Append the nodes of conditions, and behind them their operands; return the number of the first.

    ``unsigned`` names the fields that are unsigned 64-bit numbers.
    """
    first = len(nodes)
    nodes.extend(EngineNode("true") for _ in conditions)
    for number, condition in enumerate(conditions, first):
        node, operands = _node(condition, unsigned, ref_of)
        if operands:
            node = node._replace(first=add_nodes(nodes, operands, unsigned, ref_of), noperands=len(operands))
        nodes[number] = node
    return first


def _node(
    condition: Condition, unsigned: Collection[str], ref_of: RefOf
) -> tuple[EngineNode, Sequence[Condition]]:
    """Return the node of a condition without its operands, and these."""
    # C converts both operands of a comparison like those of a sum, and the right one of a shift not at all.
    wide = is_unsigned(condition, unsigned)
    made: tuple[EngineNode, Sequence[Any]]
    op: str
    match condition:
        case ("all" | "any", operands):
            made = EngineNode(condition[0]), operands
        case ("not", operand):
            made = EngineNode("not"), (operand,)
        case ("text", name, operator, text):
            op = "text_equal" if operator == "==" else "text_unequal"
            made = EngineNode(op, field=ref_of(name), value=text), ()
        case ("match", name, pattern):
            op = "matches_not" if pattern.negated else "matches"
            made = EngineNode(op, field=ref_of(name), value=pattern.glob), ()
        case ("number", name, operator, number):
            op, value = _whole(WITH_CONSTANT[operator], number)
            made = EngineNode(op, field=ref_of(name), value=value), ()
        case ("field", name):
            made = EngineNode("field", wide, field=ref_of(name)), ()
        case ("constant", value):
            made = EngineNode("constant", wide, value=value), ()
        case ("if", *operands):
            made = EngineNode("choose", wide), operands
        case ("unary", operator, operand):
            made = EngineNode(UNARY[operator], wide), (operand,)
        case ("binary", operator, *operands):
            if operator in COMPARISONS:
                wide = any(is_unsigned(operand, unsigned) for operand in operands)
            made = EngineNode(BINARY[operator], wide), operands
    return made


def _whole(op: str, value: Number) -> tuple[str, int]:
    """Return a comparison of a whole number with a fraction as one with a whole number."""
    if op == "has_bits" or not isinstance(value, float):
        return op, int(value)
    if not value.is_integer() and op in ("equal", "unequal"):
        return ("false" if op == "equal" else "true"), 0
    return op, ceil(value) if op in ("less", "greater_equal") else floor(value)
