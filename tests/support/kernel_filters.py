"""Filters as the kernel takes them: which it refuses, and how it reads literals by the types of fields."""

import re
from collections.abc import Mapping
from dataclasses import replace

from kprobe_exporter.grammar.evaluate import FieldType, wrong_comparison
from kprobe_exporter.grammar.formula import Comparison, Node


def refused(parsed: Node, known: Mapping[str, FieldType]) -> bool:
    """Return whether the filter of an event with the fields ``known`` compares what cannot be compared."""
    return any(
        part.name not in known or wrong_comparison(part, known[part.name]) for part in parsed.comparisons
    )


def by_types(parsed: Node, known: Mapping[str, FieldType]) -> Node:
    """Return the filter with each literal as the kernel compares it with a field of this type."""

    def read(part: Comparison) -> Comparison:
        field = known.get(part.name)
        if field is None:
            return part
        if field.kind == "chars" and part.operator == "~":
            return replace(part, value=_ends_the_array(str(part.value), field.size - 1))
        if field.kind not in ("int", "cpu") or not isinstance(part.value, int):
            return part
        if field.kind == "cpu" and part.operator == "&":
            return replace(part, value=0)  # filter_pred_cpu() does not implement &
        mask = (1 << 8 * field.size) - 1
        top = (mask >> 1) + 1 if field.signed else 0
        return replace(part, value=((part.value & mask) ^ top) - top)

    return parsed.change(read)


def _ends_the_array(pattern: str, size: int) -> str:
    """Make ``*x`` match only what fills the array: regex_match_end() compares the end of that."""
    found = re.fullmatch(r"(!?)\*([^*?\[\\]+)", pattern)
    return f"{found[1]}{'?' * (size - len(found[2].encode()))}{found[2]}" if found else pattern
