"""The names that threads had at their events, for events that do not hold them."""

from collections.abc import Mapping
from typing import NamedTuple

from kprobe_exporter.model.aggregation import RecordFilter
from kprobe_exporter.model.records import LAYOUT_ID, OF_THREADS, TID, Batch, Record

MAX_NAMES = 65_536
"""Beyond it the names that were learnt first go. A thread that lives is looked up then, as any other."""


class Naming(NamedTuple):
    """The positions of the thread's id and name in the record of an event that names a thread."""

    tid: int
    name: int


class ThreadNames:
    """Puts into each record the name that its thread had then, in the place of the one that was looked up.

    The same stream says when a thread starts and when it gets another name. So the name of a thread that has
    ended is right. Filters that compare a name are evaluated here, once it is known. A name stays as it was
    looked up where events about threads were lost. The reader's thread owns it.
    """

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}
        self._namings: Mapping[int, Naming] = {}
        self._places: Mapping[int, tuple[int, ...]] = {}
        self._filters: Mapping[int, RecordFilter] = {}

    def begin(self, living: Mapping[int, bytes]) -> None:
        """Know these names, which were read after the kernel began to tell of changes."""
        self._names = dict(living)

    def follow(
        self,
        namings: Mapping[int, Naming],
        places: Mapping[int, tuple[int, ...]],
        filters: Mapping[int, RecordFilter],
    ) -> None:
        """Learn from these events, and name the records with these ``places`` from now on, by layout_id.

        ``filters`` are of such records, and decide which of them are delivered.
        """
        self._namings, self._places, self._filters = namings, places, filters

    def take(self, batch: Batch) -> None:
        """Consume the events that name threads, and name the other records."""
        if any(loss.cpu >= OF_THREADS for loss in batch.losses):
            self._names.clear()
        if not self._namings:
            return
        names, kept = self._names, []
        for record in batch.records:
            if (naming := self._namings.get(record[LAYOUT_ID])) is not None:
                self._learn(record[naming.tid], record[naming.name])
                continue
            places = self._places.get(record[LAYOUT_ID], ())
            name = names.get(record[TID]) if places else None
            known = record if name is None else _replaced(record, places, name)
            if batch.passes(known, self._filters):
                kept.append(known)
        batch.records = kept

    def _learn(self, tid: int, name: bytes) -> None:
        self._names.pop(tid, None)
        while len(self._names) >= MAX_NAMES:
            del self._names[next(iter(self._names))]
        self._names[tid] = name


def _replaced(record: Record, places: tuple[int, ...], name: bytes) -> Record:
    """Return a record with the name in these places."""
    values = list(record)
    for place in places:
        values[place] = name
    return tuple(values)
