"""What is exported of batches: by `Selector` over `Pairing`, or as the compiled walk has chosen it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.recipes import passes
from kprobe_exporter.export.otlp.select import OnRecord, Selector, Signal
from kprobe_exporter.model.aggregation import RecordChoice, Where
from kprobe_exporter.model.records import TIME, Batch, Emission, Join, Layout, Record


class Exported:
    """The items of one reading. ``choices`` are by the layout_id of joined records and single events.

    Time is that of the events, as in the walk.
    """

    def __init__(self, choices: Mapping[int, RecordChoice], pairing: Pairing, *, chosen: bool) -> None:
        self._choices, self._pairing, self._chosen = choices, pairing, chosen
        self._now = 0.0
        self.items: list[tuple[Signal, Emission]] = []
        self.dropped: Counter[str] = Counter()
        together = next((one.together for one in choices.values()), None)
        self._selector = Selector(self._put, self._drop, together, clock=lambda: self._now, chance=lambda: 0)

    def add(self, layout: Layout, residual: Where | None, join: Join | None = None) -> None:
        """Export the records of a layout, if there is a choice for it; in any case, join them."""
        choice = self._choices.get(layout.layout_id)
        if choice is not None and self._chosen:
            self._selector.expect(layout, choice.signal)
        if choice is None or self._chosen:
            if join is not None:
                self._pairing.add(join)
            return
        tests = [passes(layout, where) for where in (residual, choice.where) if where is not None]
        on_record = self._timed(
            layout,
            self._selector.on_record(
                layout,
                choice.signal,
                choice.share,
                choice.max_per_second,
                lambda record: all(test(record) for test in tests),
                join,
            ),
        )
        if join is None:
            self._pairing.watch(layout, on_record)
        else:
            self._pairing.add(join, ended=on_record, system_call=choice.system_call)

    def remove(self, layout: Layout, join: Join) -> None:
        self._pairing.remove(join)
        self._selector.forget(layout, join)

    def consume(self, batch: Batch) -> None:
        self._selector.consume(batch)

    def end_round(self, *, last: bool) -> None:
        self._selector.tick()
        if last:
            self._selector.flush()

    def traces(self) -> Counter[Any]:
        """Return the items of each trace, whatever its ids: signal, record, the parent's record, and stack.

        An item without a trace is alone. A parent that was not exported is unknown.
        """
        spans = {one.span: one.record for _, one in self.items if one.span}
        found: dict[Any, list[Any]] = defaultdict(list)
        for number, (signal, one) in enumerate(self.items):
            parent = spans.get(one.parent, "unknown") if one.parent else None
            found[one.trace or -number].append((signal, one.record, parent, one.stack))
        return Counter(tuple(sorted(map(repr, items))) for items in found.values())

    def _timed(self, layout: Layout, on_record: OnRecord) -> OnRecord:
        place = layout.place("duration")

        def timed(first: Record, record: Record, enclosing: Sequence[Record]) -> None:
            ended = record[TIME] + (0 if place is None else record[place])
            self._now = max(self._now, ended * 1e-9)
            on_record(first, record, enclosing)

        return timed

    def _put(self, signal: Signal, emission: Emission) -> None:
        self.items.append((signal, emission))

    def _drop(self, signal: Signal, number: int) -> None:
        self.dropped[signal] += number
