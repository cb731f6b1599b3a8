"""A layout whose events are counted: how many came, and how a metric takes their tallies.

On its way to a metric, a tally gets the names of functions in programs (``named``) and the values that its
layout says (``for_layout``); then the metric's ``where`` decides by its labels (``selected``).
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from kprobe_exporter.aggregate.hist_deltas import HistDeltas
from kprobe_exporter.aggregate.interpret import compile_condition
from kprobe_exporter.aggregate.numbers import Take
from kprobe_exporter.aggregate.recipes import getter, signed_errors
from kprobe_exporter.aggregate.series import decoded
from kprobe_exporter.aggregate.sums import Sums
from kprobe_exporter.model.aggregation import RawKey, Tally
from kprobe_exporter.model.hist import HistTable
from kprobe_exporter.model.records import Layout, Record
from kprobe_exporter.model.specs import OF_ERROR, LabelSpec, MetricSpec
from kprobe_exporter.model.values import ABSENT, Value, Words, swapped, swapped_elements


@dataclass(slots=True)
class AttachedLayout:
    """A layout that is attached.

    ``events`` have arrived, and passed the agent's filter if it is ``filtered``. ``recorded`` are the hits
    among what has arrived: of a call or a pair (``joined``), the events that begin it.
    """

    probe: str
    sums: Sums
    takes: Mapping[int, Take]
    deltas: HistDeltas
    filtered: bool
    joined: bool
    events: int = 0
    recorded: int = 0

    def count(self, arrived: int, passed: int) -> None:
        self.events += passed if self.filtered else arrived
        self.recorded += 0 if self.joined else arrived


def for_layout(take: Take, spec: MetricSpec, layout: Layout, tables: Sequence[HistTable] = ()) -> Take:
    """Return the function that takes a metric's tallies of this layout's events or hist ``tables``."""
    changes = changes_for(spec.labels, layout, tables)
    if not changes:
        return take

    def taken(tally: Tally) -> None:
        key = list(tally.key)
        for index, change in changes.items():
            key[index] = change(key[index])
        take(tally._replace(key=tuple(key)))

    return taken


def changes_for(
    labels: Sequence[LabelSpec], layout: Layout, tables: Sequence[HistTable] = ()
) -> dict[int, Callable[[Value], Value]]:
    """Return what values of this layout go through before they are decoded, by the index of the label.

    ABSENT stands in place of each absent field. A number that was delivered in the host's byte order, and is
    decoded by what takes network order, gets that again. A number for which the layout has a word becomes it.
    An error that was read as an unsigned number of 32 bits becomes negative for the decoder of errors.
    """
    network = {arg.name: arg.network for arg in layout.args if arg.network and sys.byteorder == "little"}
    words = dict(layout.names)
    u32 = {key.field for table in tables for key in table.keys if key.bits == 32 and not key.signed}
    # Saved text tells no width ("bare" without a type): an int's error is more likely there than 4 GiB.
    u32 |= {arg.name for arg in layout.args if arg.unsigned == 32 or (arg.kind, arg.type) == ("bare", "")}
    changes: dict[int, Callable[[Value], Value]] = {}
    for index, label in enumerate(labels):
        if label.field in layout.absent:
            changes[index] = lambda _: ABSENT
        elif label.network and label.field in network:
            changes[index] = partial(_swapped, size=network[label.field])
        elif label.named and label.field in words:
            changes[index] = partial(_worded, words=words[label.field])
        elif label.first == OF_ERROR and label.field in u32:
            changes[index] = signed_errors(1 << 32)
    return changes


def attribute_readers(
    labels: Sequence[LabelSpec], layout: Layout
) -> list[tuple[str, Callable[[Record], str | None]]]:
    """Return by name how the text of each label is read from a record of this layout, None without one."""
    changes = changes_for(labels, layout)

    def reader(index: int, label: LabelSpec) -> Callable[[Record], str | None]:
        if label.field in layout.absent:
            return lambda record: None
        value, change = getter(layout, label.field), changes.get(index)
        if change is None:
            return lambda record: decoded(label, value(record))[0]
        return lambda record: decoded(label, change(value(record)))[0]

    return [(label.name, reader(index, label)) for index, label in enumerate(labels)]


def _swapped(value: Value, size: int) -> Value:
    if isinstance(value, bytes):
        return swapped_elements(value, size)
    return swapped(value, size) if isinstance(value, int) else value


def _worded(value: Value, words: Words) -> Value:
    found = words(value) if isinstance(value, int) else None
    return value if found is None else found.encode()


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


UNKNOWN = b"[unknown]"
_ADDRESS = (1 << 64) - 1

Named: TypeAlias = Callable[[Sequence[bytes]], object]


class ProgramNames(Protocol):
    """Finds the functions at addresses of a process, and calls ``then`` with their names, soon.

    It returns False if too many wait: then it never calls it. Another thread may be the one that calls.
    """

    def name(self, process: int, addresses: Sequence[int], then: Named) -> bool: ...


def named(
    take: Take, spec: MetricSpec, programs: ProgramNames | None, lock: AbstractContextManager[object]
) -> Take:
    """Return the function that takes a tally whose last key is the process of the addresses among its labels.

    It hands the tally, with names and without the process, to ``take`` under the lock, later if the names
    have to be looked up. They are unknown without ``programs``, as where the processes have long ended.
    """
    labels = spec.of_program
    if not labels:
        return take

    def taken(tally: Tally) -> None:
        *key, process = tally.key
        found = {index: key[index] for index in labels}
        numbers = {index: value & _ADDRESS for index, value in found.items() if isinstance(value, int)}
        then = partial(_take, take, tally._replace(key=tuple(key)), tuple(numbers), lock)
        asked = False
        if numbers and programs is not None and isinstance(process, int) and process > 0:
            asked = programs.name(process, tuple(numbers.values()), then)
        if not asked:
            then([UNKNOWN] * len(numbers))

    return taken


def _take(
    take: Take,
    tally: Tally,
    indices: Sequence[int],
    lock: AbstractContextManager[object],
    names: Sequence[bytes],
) -> None:
    key = list(tally.key)
    for index, name in zip(indices, names, strict=True):
        key[index] = name
    with lock:
        take(tally._replace(key=tuple(key)))
