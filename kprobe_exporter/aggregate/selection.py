"""The part of a metric's `where` that names its labels, evaluated of tallies."""

from collections import Counter
from collections.abc import Callable, Collection

from kprobe_exporter.aggregate.interpret import compile_condition
from kprobe_exporter.aggregate.numbers import Take
from kprobe_exporter.aggregate.series import decoded
from kprobe_exporter.model.aggregation import RawKey, Tally
from kprobe_exporter.model.specs import MetricSpec

MOST_KEYS = 10_000
"""Raw values of which the result is remembered."""


def selected(
    spec: MetricSpec,
    take: Take,
    unsigned: Collection[str],
    failures: Counter[str],
    unreadable: Callable[[int], None],
) -> Take:
    """Return the function that hands a tally to ``take`` if its labels pass the metric's ``selects``.

    A label that cannot be decoded is missing there, and ``failures`` counts it if the tally does not pass; if
    it does, it counts with the label set. ``unreadable`` counts events for which the condition is missing.
    """
    if spec.selects is None:
        return take
    test = compile_condition(spec.selects.condition, unsigned)
    labels = len(spec.labels)
    named = [(index, label) for index, label in enumerate(spec.labels) if label.name in spec.selects.fields]
    fields = [*enumerate(spec.selects_by, labels)]
    known: dict[RawKey, int] = {}

    def evaluate(tally: Tally) -> int:
        key = tally.key
        texts = {label.name: decoded(label, key[index]) for index, label in named}
        event = {name: None if text is None else text.encode() for name, (text, _) in texts.items()}
        met = test({**{name: key[index] for index, name in fields}, **event})
        lacking = [failed for text, failed in texts.values() if text is None]
        if not met:
            for decoder in lacking:
                failures[decoder] += tally.events
        if met is None:
            unreadable(tally.events)
        elif not lacking:  # a failure is counted at every event, so it must not be remembered
            if len(known) >= MOST_KEYS:
                known.clear()
            known[key] = met
        return met or 0

    def taken(tally: Tally) -> None:
        met = known.get(tally.key)
        if evaluate(tally) if met is None else met:
            take(tally._replace(key=tally.key[:labels]))

    return taken
