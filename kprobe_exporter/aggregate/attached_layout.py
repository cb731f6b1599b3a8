"""A layout whose events are counted: how many came, and how a metric takes their tallies."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kprobe_exporter.aggregate.hist_deltas import HistDeltas
from kprobe_exporter.aggregate.numbers import Take
from kprobe_exporter.aggregate.recipes import getter, signed_errors
from kprobe_exporter.aggregate.series import decoded
from kprobe_exporter.aggregate.sums import Sums
from kprobe_exporter.model.aggregation import Tally
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
