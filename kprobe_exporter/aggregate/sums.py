"""Adds up the records of one layout by its recipe: records become tallies.

The event engine (engine/tally.c) does the same for pages; tests hold both to the same tallies.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from kprobe_exporter.aggregate.interpret import Evaluate, compile_condition
from kprobe_exporter.aggregate.native import code
from kprobe_exporter.aggregate.recipes import Getter, column, getter, passes, tuple_getter
from kprobe_exporter.model.aggregation import Group, Recipe, Refused, Tally
from kprobe_exporter.model.records import TGID, TID, TIME, VALUES, Layout, Record
from kprobe_exporter.model.specs import PROCESS, CgroupOf, FactOf
from kprobe_exporter.model.values import Value

Row = tuple[Any, ...]
"""The parts of a record that a group needs: its keys, its value, the fields of its filter, and the time."""

Rows = Collection[tuple[Row, int]]
"""Rows that differ, each with the number of its records."""

_RowsOf = Callable[[Sequence[Record], Sequence[tuple[Record, int]]], Rows]
"""Makes rows of records, and of records that stand for several."""

_Tested = tuple[Group, Evaluate | None]
"""A group, and the function that evaluates its condition."""


class Sums:
    """The records of one layout that were not added up yet. Not thread-safe.

    ``add`` takes a record. It computes fields, and looks up the cgroup or the fact of a thread that is a
    label. The agent knows these only at the record's place in the stream. ``repeat`` takes one that stands
    for several. ``take`` adds up what came since its last call. ``looked_up`` does this for a source's sum.
    Equal rows are handled once: a record costs about 0.1 µs for each set of fields that is needed, and a row
    0.5 µs.
    """

    def __init__(
        self,
        layout: Layout,
        recipe: Recipe,
        cgroup: CgroupOf | None = None,
        fact: FactOf | None = None,
    ) -> None:
        self._layout_id = layout.layout_id
        self._records: list[Record] = []
        self._repeated: list[tuple[Record, int]] = []
        self._passes = passes(layout, recipe.residual_filter) if recipe.residual_filter else None
        self._cgroup, self._fact = cgroup, fact
        self._threads = {group.feeds: _looked_up(group) for group in recipe.groups}
        threads = sorted(
            {(group.keys[index], name) for group in recipe.groups for index, name in _looked_up(group)}
        )
        used = {name for group in recipe.groups for name in (*group.keys, group.value)}
        computed = [one.name for one in layout.computed if one.name in used]
        more = [self._of_thread(getter(layout, field), name) for field, name in threads]
        more += [getter(layout, name) for name in computed]
        if PROCESS in used:
            computed.append(PROCESS)
            more.append(_process)
        self._more = more
        self.add: Callable[[Record], None] = self._records.append
        if more:
            self.add = _with_more(self.add, more)
        first = VALUES + len(layout.args)
        places = {thread: first + number for number, thread in enumerate(threads)}
        computed_at = {name: first + len(threads) + number for number, name in enumerate(computed)}
        self._groups: dict[object, tuple[_RowsOf, list[_Tested]]] = {}
        for group in recipe.groups:
            test = compile_condition(group.where.condition, layout.unsigned) if group.where else None
            needed = _fields(group), group.cgroups, group.facts, group.last, group.largest
            if needed not in self._groups:
                self._groups[needed] = _rows(layout, group, places, computed_at), []
            self._groups[needed][1].append((group, test))

    def repeat(self, record: Record, number: int) -> None:
        """Add a record that stands for so many equal ones."""
        self._repeated.append(((*record, *[take(record) for take in self._more]), number))

    def looked_up(self, tally: Tally, moment: int) -> Tally:
        """Return a tally whose key names threads with their cgroups or facts at that moment."""
        key = [*tally.key]
        for index, name in self._threads[tally.feeds]:
            key[index] = self._look_up(name, key[index], moment)
        return tally._replace(key=tuple(key))

    def take(self) -> tuple[int, int, list[Tally | Refused]]:
        """Return the numbers of the records and of those that passed the recipe's filter, and the sums."""
        records, repeated = self._records.copy(), self._repeated
        self._records.clear()
        self._repeated = []
        arrived = len(records) + sum(number for _, number in repeated)
        if self._passes is not None:
            records = [*filter(self._passes, records)]
            repeated = [one for one in repeated if self._passes(one[0])]
        passed = len(records) + sum(number for _, number in repeated)
        sums: list[Tally | Refused] = []
        for rows_of, groups in self._groups.values() if passed else ():
            rows = rows_of(records, repeated)
            for group, test in groups:
                sums += _tallies(self._layout_id, group, test, rows)
        return arrived, passed, sums

    def _of_thread(self, thread: Getter, name: str) -> Getter:
        """Return the function that looks up the cgroup or the fact of the thread that a field names."""
        return lambda record: self._look_up(name, thread(record), record[TIME])

    def _look_up(self, name: str, tid: Value, time: int) -> Value:
        """Return a fact of a thread, its cgroup for ""; None if a value that is not a number names it."""
        if not isinstance(tid, int):
            return None
        if name:
            return None if self._fact is None else self._fact(name, tid, time)
        return None if self._cgroup is None else self._cgroup(tid, time)


def _with_more(add: Callable[[Record], None], more: Sequence[Getter]) -> Callable[[Record], None]:
    """Return the function that adds a record with more values behind its own."""
    return lambda record: add((*record, *[take(record) for take in more]))


def _looked_up(group: Group) -> tuple[tuple[int, str], ...]:
    """Return the indexes of the keys that name a thread, each with the fact, "" for the cgroup."""
    return tuple(zip(group.cgroups, group.facts or [""] * len(group.cgroups), strict=True))


def _process(record: Record) -> Value:
    """Return the process of a record, or its thread where that is not known yet, as at the first in text."""
    process: Value = record[TGID] or record[TID]
    return process


def _fields(group: Group) -> tuple[str, ...]:
    """Return the fields that a group needs: its keys, its value and those of its filter."""
    value = (group.value,) if group.value is not None else ()
    return (*group.keys, *value, *(group.where.fields if group.where is not None else ()))


def _rows(
    layout: Layout, group: Group, threads: Mapping[tuple[str, str], int], computed: Mapping[str, int]
) -> _RowsOf:
    """Return the function that makes rows of records.

    ``threads`` are the places of threads' cgroups and facts, ``computed`` those of computed fields.
    """
    columns = [
        (computed[field], None) if field in computed else column(layout, field) for field in _fields(group)
    ]
    for index, name in _looked_up(group):
        columns[index] = threads[group.keys[index], name], None
    ordered = group.last or group.largest
    if ordered:
        columns.append((TIME, None))
    conversions = [(index, convert) for index, (_, convert) in enumerate(columns) if convert is not None]
    take = tuple_getter([place for place, _ in columns])

    def rows(records: Sequence[Record], repeated: Sequence[tuple[Record, int]]) -> Rows:
        counts = Counter(map(take, reversed(records) if ordered else records))
        for record, number in repeated:
            counts[take(record)] += number
        # The last one of a time is kept: rows are in the order in which they came last.
        counted = [*reversed(counts.items())] if ordered else counts.items()
        return [*map(converted, counted)] if conversions else counted

    def converted(counted: tuple[Row, int]) -> tuple[Row, int]:
        row, number = counted
        values = [*row]
        for index, convert in conversions:
            values[index] = convert(values[index])
        return tuple(values), number

    return rows


def _tallies(layout_id: int, group: Group, test: Evaluate | None, rows: Rows) -> Iterator[Tally | Refused]:
    """Yield a group's sums over these rows, and the number of refused values."""
    where, bounds, finer, keys = group.where, group.bounds, group.exponential, len(group.keys)
    first = keys + (group.value is not None)  # where the fields of the filter begin; the time may follow them
    cells: defaultdict[Row, _Cell] = defaultdict(lambda: _Cell(bounds))
    negative = unreadable = 0
    for row, number in rows:
        if where is not None and test is not None:
            met = test(dict(zip(where.fields, row[first:], strict=False)))
            if not met:
                unreadable += number if met is None else 0
                continue
        value = 0
        if group.value is not None:
            value = row[keys]
            if not isinstance(value, int):
                unreadable += number
                continue
            if group.positive and value < 0:
                negative += number
                continue
        key = row[:keys] if finer is None else (*row[:keys], code(finer, value))
        cell = cells[() if group.largest else key]
        cell.events += number
        if group.largest:
            cell.keep_largest(value, row[-1], key)
        elif not group.last:
            cell.sum += value * number
        elif row[-1] >= cell.time:
            cell.sum, cell.time = value, row[-1]
        if bounds is not None:
            cell.buckets[bisect_left(bounds, value)] += number
    for key, cell in cells.items():
        buckets = tuple(cell.buckets) if bounds is not None else None
        bucket = finer.bucket(key[keys]) if finer is not None else None
        values = (key if cell.key is None else cell.key)[:keys]
        yield Tally(layout_id, group.feeds, values, cell.events, cell.sum, cell.time, buckets, bucket)
    if negative or unreadable:
        yield Refused(layout_id, group.feeds, negative, unreadable)


class _Cell:
    """The sums of one key, or the largest value of all keys and its ``key``."""

    __slots__ = ("buckets", "events", "key", "sum", "time")

    def __init__(self, bounds: Sequence[int] | None) -> None:
        self.key: Row | None = None
        self.events = self.sum = self.time = 0
        self.buckets = [0] * (len(bounds) + 1) if bounds is not None else []

    def keep_largest(self, value: int, time: int, key: Row) -> None:
        """Keep a value with its key if it is the largest one, of equal ones the latest."""
        if self.key is None or (value, time) >= (self.sum, self.time):
            self.sum, self.time, self.key = value, time, key
