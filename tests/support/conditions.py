"""Evaluates conditions and filters on the fields of one event, as the agent does."""

from collections.abc import Callable

from kprobe_exporter.aggregate.interpret import Event, compile_condition
from kprobe_exporter.grammar.formula import Node
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.plan.metric import residual


def meets(where: Where, event: Event) -> bool:
    """Return whether an event without unsigned 64-bit fields meets a condition."""
    return bool(compile_condition(where.condition)(event))


def compile_filter(parsed: Node) -> Callable[[Event], bool]:
    """Return the function that says whether an event passes a filter."""
    test = compile_condition(residual(parsed).condition)
    return lambda event: bool(test(event))
