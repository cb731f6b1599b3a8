"""The words that a tracepoint's ``print fmt`` has for the numbers of a field."""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import CONVERSION, EventFormat
from kprobe_exporter.grammar.print_expression import JOINED, Expression
from kprobe_exporter.grammar.print_parser import identifiers, parse_argument
from kprobe_exporter.model.values import Words

Constants = Callable[[frozenset[str]], Mapping[str, int]]
"""Returns the values of the kernel's constants of these names, as far as they are known."""


def print_words(form: EventFormat, field: str, constants: Constants = lambda names: {}) -> Words | None:
    """Return the words for a field's numbers; None if the ``print fmt`` prints none.

    Places without text between them are one word, as the ``R`` and the ``+`` of sched_switch. If several
    places show parts of the number, the words of all are joined by ``|``. If one has a table of words, those
    without one, such as ``REC->flags & 1 ? "true" : "false"``, do not count. ``constants`` is called only if
    the arguments that show the field have names of which the kernel did not write the numbers.
    """
    found = [(place, text) for place, text in _placed(form) if f"REC->{field}" in text]
    unknown = frozenset[str]().union(*(identifiers(text) for _, text in found)) - {"REC", "true", "false"}
    known = constants(unknown) if unknown else {}
    parts: list[tuple[int, Expression]] = []
    for place, text in found:
        try:
            parts += [(place, part) for part in parse_argument(text, known).words_of(field)]
        except GrammarError:
            continue  # it is of a form that this version does not know; the others may do
    if not parts:
        return None
    groups = [[part for _, part in group] for _, group in groupby(parts, lambda one: one[0])]
    groups = [group for group in groups if any(part.has_table for part in group)] or groups

    def words(value: int) -> str | None:
        # A place without a word shows a number there; only a number without any word stays one.
        shown = [[text for part in group if (text := _word(part, value))] for group in groups]
        return JOINED.join("".join(texts).strip() for texts in shown if texts) or None

    return words


def _word(part: Expression, value: int) -> str | None:
    assert part.compute is not None
    try:
        found = part.compute(value)
    except ArithmeticError:
        return None
    return found if isinstance(found, str) else None


def _placed(form: EventFormat) -> Iterator[tuple[int, str]]:
    """Yield each argument with the number of its place; those with no text between them have the same."""
    place, at, values = 0, 0, iter(form.print_args)
    for found in CONVERSION.finditer(form.print_text):
        place += found.start() > at
        at = found.end()
        if found["kind"] == "%":
            place += 1
            continue
        for extra in ("width", "precision"):
            if found[extra] == "*":
                next(values, "")
        yield place, next(values, "")
