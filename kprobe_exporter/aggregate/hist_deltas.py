"""Turns readings of hist tables, which only grow, into the increases since the last reading."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from kprobe_exporter.aggregate.native import code, exponential
from kprobe_exporter.aggregate.recipes import NANOSECONDS, signed_errors, thresholds
from kprobe_exporter.model.aggregation import DURATIONS, RETURN_ERRORS, RETURN_VALUES, Refused, Tally
from kprobe_exporter.model.hist import HistFeed, HistKey, HistReading, HistTable
from kprobe_exporter.model.pairs import PairLoss
from kprobe_exporter.model.records import Batch, Layout
from kprobe_exporter.model.specs import ProbeMetrics
from kprobe_exporter.model.values import LARGEST, Value, is_error

Key = tuple[int | bytes, ...]
Row = tuple[tuple[Value, ...], int, int]
"""The values of a row's keys, and the increases of its hits and of its sum."""


class HistDeltas:
    """The hist tables of one installed probe, and their last readings.

    Not thread-safe: the poller's thread, which reads them, owns it.
    """

    def __init__(self, layout: Layout, metrics: ProbeMetrics, tables: Sequence[HistTable]) -> None:
        self._layout_id = layout.layout_id
        self._tables = [_Table(layout, metrics, table) for table in tables]
        self._loss = PairLoss(0, 0)

    def since(self, readings: Sequence[HistReading], loss: PairLoss | None = None) -> Batch:
        """Return what happened since the last reading, in the form in which a source of events reports it.

        Events that passed the filter are counted by the tables that see all of them. One that found its table
        full is a loss, not an event. ``loss`` are the events that the kernel did not join so far: these are
        lower bounds, so the highest counts.
        """
        batch = Batch()
        if loss is not None:
            before, self._loss = self._loss, PairLoss(*map(max, self._loss, loss))
            unpaired, full = (now - then for now, then in zip(self._loss, before, strict=True))
            batch.unpaired += Counter({self._layout_id: unpaired})
            batch.table_full += Counter({self._layout_id: full})
        passed = 0
        for table, reading in zip(self._tables, readings, strict=True):
            added, dropped = table.seen(reading)
            passed += added
            if dropped:
                batch.table_full[self._layout_id] += dropped
            for row in table.grown(reading):
                for feed in table.feeds:
                    increase = feed(row)
                    if isinstance(increase, Tally):
                        batch.tallies.append(increase)
                    elif increase is not None:
                        batch.refused.append(increase)
        batch.arrived[self._layout_id] = passed
        return batch


class _Table:
    """One table: its last reading, and how its rows feed the metrics."""

    def __init__(self, layout: Layout, metrics: ProbeMetrics, table: HistTable) -> None:
        self.feeds = [_feed(layout.layout_id, metrics, table, feed) for feed in table.feeds]
        self._readers = [_reader(layout, key) for key in table.keys]
        self._counts_passed = table.passed
        self._overflow = 1 << (96 if table.high else 64)
        self._seen = 0, 0
        self._last: Mapping[Key, tuple[int, int]] = {}

    def seen(self, reading: HistReading) -> tuple[int, int]:
        """Return the numbers of events that were added to a row and that were dropped. Both passed the
        filter, since the last reading or since the table restarted."""
        hits, dropped = self._seen
        if reading.hits < hits or reading.dropped < dropped:
            hits, dropped, self._last = 0, 0, {}
        self._seen = reading.hits, reading.dropped
        return (reading.hits - hits if self._counts_passed else 0), reading.dropped - dropped

    def grown(self, reading: HistReading) -> Iterator[Row]:
        """Yield the rows that grew. A sum has 64 bits and may overflow; with upper halves it has 96."""
        last, self._last = self._last, reading.rows
        for key, (hits, total) in reading.rows.items():
            hits_before, sum_before = last.get(key, (0, 0))
            if hits < hits_before:
                hits_before, sum_before = 0, 0
            more, added = hits - hits_before, (total - sum_before) % self._overflow
            if more or added:
                yield tuple([read(raw) for read, raw in zip(self._readers, key, strict=True)]), more, added


def _reader(layout: Layout, key: HistKey) -> Callable[[int | bytes], Value]:
    """Return the reader of a key: the kernel prints a number's bits, extended with zeros or the sign.

    A linear bucket is read as its last number.
    """
    if key.log2 or not key.bits:
        return lambda raw: raw
    mask, sign = (1 << key.bits) - 1, 1 << (key.bits - 1)
    returns = layout.returns if key.field == "return" else None
    normal = signed_errors(returns.wrap if returns else 0)
    last = key.offset + max(0, key.width - 1)

    def read(raw: int | bytes) -> Value:
        assert isinstance(raw, int)
        number = raw & mask
        return normal((number - (sign << 1) if key.signed and number & sign else number) + last)

    return read


def _feed(
    layout_id: int, metrics: ProbeMetrics, table: HistTable, feed: HistFeed
) -> Callable[[Row], Tally | Refused | None]:
    """Return how a metric uses a row."""
    feeds, use, labels, place = feed.feeds, feed.use, feed.labels, feed.value
    spec = None if feeds in (DURATIONS, RETURN_VALUES, RETURN_ERRORS) else metrics.metrics[feeds]
    if feeds == DURATIONS:
        bounds = thresholds(metrics.duration_buckets, NANOSECONDS)
    else:
        bounds = thresholds(spec.buckets, spec.scale) if spec else thresholds(metrics.return_buckets, 1)
    native = spec.native if spec else metrics.native
    own_scale = NANOSECONDS if feeds == DURATIONS else 1
    finer = exponential(spec.scale if spec else own_scale) if native else None
    log2 = place is not None and table.keys[place].log2
    step = place is not None and table.keys[place].width > 0

    def increase(row: Row) -> Tally | Refused | None:
        values, hits, total = row
        if use == "negative":
            return Refused(layout_id, feeds, negative=hits, unreadable=0)
        value = LARGEST if place is None else values[place]
        key = tuple([None if label is None else values[label] for label in labels])
        if use == "errors":
            return Tally(layout_id, feeds, (value,), hits, 0) if is_error(value) else None
        if use == "add":
            return Tally(layout_id, feeds, key, hits, total)
        assert isinstance(value, int)
        if not log2 and spec is None and value < 0:
            return None
        # All values in (2^(k-1), 2^k] fall into one bucket; 0.75 * 2^k does so without rounding.
        summed = log2 or step or place is None
        place_of, total = 0.75 * 2.0**value if log2 else value, total if summed else value * hits
        bucket = finer.bucket(code(finer, min(1 << value, LARGEST) if log2 else value)) if finer else None
        if bucket and log2:
            bucket = bucket._replace(step=-(-bucket.step >> bucket.schema), schema=0)
        counts = [0] * (len(bounds) + 1)
        counts[bisect_left(bounds, place_of)] = hits
        return Tally(layout_id, feeds, key, hits, total, buckets=tuple(counts), exponential=bucket)

    return increase
