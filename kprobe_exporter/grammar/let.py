"""The expressions of ``let``: each with the others' expressions in place of their names."""

from collections.abc import Mapping

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.formula import Node, insert
from kprobe_exporter.grammar.formula_parser import parse_formula


def inserted(lets: Mapping[str, str]) -> Mapping[str, Node]:
    """Return the expressions of ``let`` with every name of another one replaced.

    Raises GrammarError for one that stands for itself, or for too much; its ``text`` is the name of that.
    """
    written = {name: parse_formula(text) for name, text in lets.items()}
    done: dict[str, Node] = {}
    while waiting := {name: tree for name, tree in written.items() if name not in done}:
        ready = [name for name, tree in waiting.items() if not tree.fields & waiting.keys()]
        if not ready:
            raise GrammarError("this is computed of itself", next(iter(waiting)))
        for name in ready:
            try:
                done[name] = insert(waiting[name], done)
            except GrammarError as error:
                raise GrammarError(error.message, name) from None
    return {name: done[name] for name in lets}
