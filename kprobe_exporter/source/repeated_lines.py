"""Lines of trace_pipe whose text was read before: what compiled code counts of them, as records."""

from collections.abc import Mapping
from typing import NamedTuple

from kprobe_exporter.model.aggregation import Recipe
from kprobe_exporter.model.records import CPU, PLACES, TGID, TID, Layout, Record
from kprobe_exporter.model.specs import PROCESS
from kprobe_exporter.source._lines import LineCounter


class _Apart(NamedTuple):
    """Whether the lines of an event are counted apart by CPU and by thread, since its recipe uses these."""

    cpu: bool
    tid: bool


class RepeatedLines:
    """The lines whose text was read before: they are counted, and become ``Batch.repeated``.

    This is for layouts with a recipe, whose records nothing else needs. It does not apply to recipes that
    keep one value, which depends on the order, or use the process. If lines hardly repeat, it is switched
    off. Not thread-safe.
    """

    def __init__(self, counter: LineCounter, apart: Mapping[bytes, _Apart]) -> None:
        self._counter = counter
        self._apart = apart
        self._read: list[Record] = []  # by the number of their text

    @classmethod
    def of(cls, walks: Mapping[bytes, Layout], recipes: Mapping[int, Recipe]) -> "RepeatedLines | None":
        """Return the object for these layouts, None if none of them can be counted in this way."""
        apart = {}
        for key, layout in walks.items():
            recipe = recipes.get(layout.layout_id)
            if recipe is None or any(group.last or group.largest or group.cgroups for group in recipe.groups):
                continue
            wheres = (recipe.residual_filter, *(group.where for group in recipe.groups), *layout.computed)
            used = {name for where in wheres if where is not None for name in where.fields}
            used |= {name for group in recipe.groups for name in (*group.keys, group.value) if name}
            places = {PLACES.get(name) for name in used if layout.place(name) is None}
            if TGID not in places and PROCESS not in used:
                apart[key] = _Apart(CPU in places, TID in places)
        return cls(LineCounter(), apart) if apart else None

    def scan(self, data: bytes, at: int, end: int) -> int:
        """Count the lines from ``at`` on; return where the first one begins that was not counted."""
        return self._counter.scan(data, at, end)

    def last_scan(self) -> tuple[int, dict[int, int]]:
        """Return the time of the first line that ``scan`` counted, and that of the last one of each CPU."""
        return self._counter.first, self._counter.lasts()

    def learn(self, key: bytes, record: Record, data: bytes, start: int, end: int) -> bool:
        """Count lines like this one, which was read, from now on. Return False if there is no more room."""
        if (apart := self._apart.get(key)) is None:
            return True
        if self._counter.learn(data, start, end, apart.cpu, apart.tid) is None:
            return False
        self._read.append(record)
        return True

    def take(self) -> list[tuple[Record, int]]:
        """Return what was counted since the last call."""
        found = []
        for number, cpu, tid, lines in self._counter.take():
            record = self._read[number]
            if cpu is not None or tid is not None:
                changed = [*record]
                changed[CPU] = record[CPU] if cpu is None else cpu
                changed[TID] = record[TID] if tid is None else tid
                record = tuple(changed)
            found.append((record, lines))
        return found

    def start_again(self) -> bool:
        """Forget all texts, after ``take``. Return False if fewer lines were counted than read since then."""
        worth = self._counter.counted > len(self._read)
        self._counter.clear()
        self._read.clear()
        return worth
