"""Adds up the records of one layout by its recipe: records become tallies.

The compiled walk (source/_tally.pxi) does the same for pages; tests hold both to the same tallies.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from kprobe_exporter.aggregate.recipes import Getter, column, getter, passes, tuple_getter
from kprobe_exporter.model.aggregation import Group, Recipe, Refused, Tally
from kprobe_exporter.model.values import TIME, VALUES, CgroupOf, Layout, Record, Value

Row = tuple[Any, ...]
"""What a group needs of a record: its keys, its value, the fields of its filter, and the time."""

Rows = Collection[tuple[Row, int]]
"""Rows that differ, each with the number of its records."""


class Sums:
    """The records of one layout that were not added up yet. Not thread-safe.

    ``add`` takes a record. It looks up the cgroup of a thread that is a label, since the agent knows it only
    at the record's place in the stream. ``take`` adds up what came since its last call. Equal rows are
    handled once: a record costs about 0.1 µs for each set of fields that is needed, and a row 0.5 µs.
    """

    def __init__(self, layout: Layout, recipe: Recipe, cgroup: CgroupOf | None = None) -> None:
        self._layout_id = layout.layout_id
        self._records: list[Record] = []
        self._passes = passes(layout, recipe.residual_filter) if recipe.residual_filter else None
        threads = sorted({group.keys[index] for group in recipe.groups for index in group.cgroups})
        self.add: Callable[[Record], None] = self._records.append
        if threads:
            self.add = _with_cgroups(self.add, [getter(layout, field) for field in threads], cgroup)
        places = {field: VALUES + len(layout.args) + number for number, field in enumerate(threads)}
        self._groups: dict[object, tuple[Callable[[Sequence[Record]], Rows], list[Group]]] = {}
        for group in recipe.groups:
            needed = _fields(group), group.cgroups, group.last
            if needed not in self._groups:
                self._groups[needed] = _rows(layout, group, places), []
            self._groups[needed][1].append(group)

    def take(self) -> tuple[int, int, list[Tally | Refused]]:
        """Return the numbers of the records and of those that passed the recipe's filter, and the sums."""
        records = self._records.copy()
        self._records.clear()
        sums: list[Tally | Refused] = []
        passed = records if self._passes is None else [*filter(self._passes, records)]
        for rows_of, groups in self._groups.values() if passed else ():
            rows = rows_of(passed)
            for group in groups:
                sums += _tallies(self._layout_id, group, rows)
        return len(records), len(passed), sums


def _with_cgroups(
    add: Callable[[Record], None], threads: Sequence[Getter], cgroup: CgroupOf | None
) -> Callable[[Record], None]:
    """Return the function that adds a record with the cgroups of these threads behind its values."""

    def path(tid: Value, time: int) -> bytes | None:
        return cgroup(tid, time) if cgroup is not None and isinstance(tid, int) else None

    return lambda record: add((*record, *[path(take(record), record[TIME]) for take in threads]))


def _fields(group: Group) -> tuple[str, ...]:
    """Return the fields that a group needs: its keys, its value and those of its filter."""
    value = (group.value,) if group.value is not None else ()
    return (*group.keys, *value, *(group.where.fields if group.where is not None else ()))


def _rows(layout: Layout, group: Group, cgroups: Mapping[str, int]) -> Callable[[Sequence[Record]], Rows]:
    """Return the function that makes rows of records; ``cgroups`` are the places of threads' cgroups."""
    columns = [column(layout, field) for field in _fields(group)]
    for index in group.cgroups:
        columns[index] = cgroups[group.keys[index]], None
    if group.last:
        columns.append((TIME, None))
    conversions = [(index, convert) for index, (_, convert) in enumerate(columns) if convert is not None]
    take = tuple_getter([place for place, _ in columns])

    def rows(records: Sequence[Record]) -> Rows:
        counted = Counter(map(take, records)).items()
        return [*map(converted, counted)] if conversions else counted

    def converted(counted: tuple[Row, int]) -> tuple[Row, int]:
        row, number = counted
        values = [*row]
        for index, convert in conversions:
            values[index] = convert(values[index])
        return tuple(values), number

    return rows


def _tallies(layout_id: int, group: Group, rows: Rows) -> Iterator[Tally | Refused]:
    """Yield a group's sums over these rows, and the number of refused values."""
    where, bounds, keys = group.where, group.bounds, len(group.keys)
    first = keys + (group.value is not None)  # where the fields of the filter begin; the time may follow them
    cells: defaultdict[Row, _Cell] = defaultdict(lambda: _Cell(bounds))
    negative = unreadable = 0
    for row, number in rows:
        if where is not None and not where.test(dict(zip(where.fields, row[first:], strict=False))):
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
        cell = cells[row[:keys]]
        cell.events += number
        if not group.last:
            cell.sum += value * number
        elif row[-1] >= cell.time:
            cell.sum, cell.time = value, row[-1]
        if bounds is not None:
            cell.buckets[bisect_left(bounds, value)] += number
    for key, cell in cells.items():
        buckets = tuple(cell.buckets) if bounds is not None else None
        yield Tally(layout_id, group.feeds, key, cell.events, cell.sum, cell.time, buckets)
    if negative or unreadable:
        yield Refused(layout_id, group.feeds, negative, unreadable)


class _Cell:
    """The sums of one key."""

    __slots__ = ("buckets", "events", "sum", "time")

    def __init__(self, bounds: Sequence[int] | None) -> None:
        self.events = self.sum = self.time = 0
        self.buckets = [0] * (len(bounds) + 1) if bounds is not None else []
