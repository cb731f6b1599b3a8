"""Compiles a metric into an update: a function that applies one record to the metric's cells."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter

from kprobe_exporter.aggregate.series import Series
from kprobe_exporter.model.values import (
    CALLER,
    CPU,
    MAX_ERRNO,
    TGID,
    TID,
    TIME,
    CgroupOf,
    Exemplar,
    HistogramValue,
    LabelSpec,
    Layout,
    MetricSpec,
    Record,
    ReturnType,
    Value,
    Where,
)

Update = Callable[[Record], None]
Getter = Callable[[Record], Value]

Refuse = Callable[[str], None]
"""Called with the reason why an event's value could not be taken."""

PLACES = {"cpu": CPU, "tid": TID, "pid": TGID, "caller": CALLER}


class HistogramCell:
    """Counts per bucket (the last is +Inf) and the sum of one label set's values."""

    __slots__ = ("counts", "exemplars", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.sum: float = 0
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, bounds: Sequence[float], value: float) -> None:
        self.counts[bisect_left(bounds, value)] += 1
        self.sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add the bucket counts and the sum of many values."""
        self.counts = [*map(int.__add__, self.counts, counts)]
        self.sum += total

    def exemplify(self, bounds: Sequence[float], exemplar: Exemplar) -> None:
        """Keep the exemplar as the last one of its bucket."""
        self.exemplars[bisect_left(bounds, exemplar.value)] = exemplar

    def value(self, bounds: tuple[float, ...]) -> HistogramValue:
        return HistogramValue(bounds, tuple(self.counts), self.sum, dict(self.exemplars))


def normal_return(returns: ReturnType) -> Callable[[Value], Value]:
    """Return the function that makes errors negative, in a return value that is too wide or a pointer."""
    wrap = returns.wrap
    if not wrap:
        return lambda value: value
    lowest = wrap - MAX_ERRNO

    def normal(value: Value) -> Value:
        if isinstance(value, int) and lowest <= value < wrap:
            return value - wrap
        return value

    return normal


def getter(layout: Layout, field: str) -> Getter:
    """Return the function that takes ``field`` out of a record; it gives None where it is not recorded."""
    if field == "symbol":
        symbol = layout.symbol.encode()
        return lambda record: symbol
    place = PLACES.get(field) if field in PLACES else layout.place(field)
    if place is None:
        return lambda record: None
    take: Getter = itemgetter(place)
    if field == "return" and layout.returns and (layout.returns.wide or layout.returns.pointer):
        normal = normal_return(layout.returns)
        return lambda record: normal(take(record))
    return take


def key_getter(
    layout: Layout, labels: Sequence[LabelSpec], cgroup: CgroupOf | None = None
) -> Callable[[Record], tuple[Value, ...]]:
    """Return the function that takes the fields of all labels out of a record at once."""
    if not labels:
        return lambda record: ()
    fields = [label.field for label in labels]
    getters = [_label_getter(layout, label, cgroup) for label in labels]
    if len(getters) == 1:
        (getter,) = getters
        return lambda record: (getter(record),)
    if all(isinstance(take, itemgetter) for take in getters):
        places = [PLACES.get(field) or layout.place(field) for field in fields]
        return itemgetter(*places)
    return lambda record: tuple([take(record) for take in getters])


def _label_getter(layout: Layout, label: LabelSpec, cgroup: CgroupOf | None) -> Getter:
    """Return the getter of a label's field, or of the cgroup of the thread that the field names."""
    take = getter(layout, label.field)
    if not label.of_thread:
        return take

    def path(record: Record) -> bytes | None:
        tid = take(record)
        return cgroup(tid, record[TIME]) if cgroup is not None and isinstance(tid, int) else None

    return path


def passes(layout: Layout, where: Where) -> Callable[[Record], bool]:
    """Return the function that tells whether a record passes a filter. It costs about 1 µs an event."""
    getters = [(field, getter(layout, field)) for field in where.fields]
    test = where.test
    return lambda record: test({field: take(record) for field, take in getters})


def guarded(test: Callable[[Record], bool], update: Update) -> Update:
    """Return the update for only those records that pass the test."""

    def guard(record: Record) -> None:
        if test(record):
            update(record)

    return guard


def counter_update(
    layout: Layout,
    spec: MetricSpec,
    series: Series[list[float]],
    refuse: Refuse,
    cgroup: CgroupOf | None = None,
) -> Update:
    """Return the update that adds 1, or the value; a negative or unreadable value is refused."""
    key, cell = key_getter(layout, spec.labels, cgroup), series.cell
    if spec.value is None:

        def count(record: Record) -> None:
            cell(key(record))[0] += 1

        return count
    take, scale = getter(layout, spec.value), whole_scale(spec)

    def add(record: Record) -> None:
        value = take(record)
        if isinstance(value, int) and value >= 0:
            cell(key(record))[0] += value * scale
        else:
            refuse("negative" if isinstance(value, int) else "unreadable")

    return add


def gauge_update(
    layout: Layout,
    spec: MetricSpec,
    series: Series[list[float]],
    refuse: Refuse,
    cgroup: CgroupOf | None = None,
) -> Update:
    """Return the update that keeps the last value."""
    key, cell = key_getter(layout, spec.labels, cgroup), series.cell
    take, scale = getter(layout, spec.value or ""), whole_scale(spec)

    def keep(record: Record) -> None:
        value = take(record)
        if isinstance(value, int):
            cell(key(record))[0] = value * scale
        else:
            refuse("unreadable")

    return keep


def histogram_update(
    layout: Layout,
    spec: MetricSpec,
    series: Series[HistogramCell],
    refuse: Refuse,
    cgroup: CgroupOf | None = None,
) -> Update:
    """Return the update that puts the value into its bucket."""
    key, cell = key_getter(layout, spec.labels, cgroup), series.cell
    take, scale, bounds = getter(layout, spec.value or ""), whole_scale(spec), spec.buckets

    def observe(record: Record) -> None:
        value = take(record)
        if isinstance(value, int):
            cell(key(record)).observe(bounds, value * scale)
        else:
            refuse("unreadable")

    return observe


class _Part(float):
    """The reciprocal of a whole number, to divide by: 1000 / 1e9 is 1e-06, and 1000 * 1e-9 is a bit more."""

    whole: int

    def __rmul__(self, value: float) -> float:
        return value / self.whole


def whole_scale(spec: MetricSpec) -> float:
    """Return the factor, to be used as the right operand. A whole factor stays an int, so that large counts
    stay exact. A reciprocal divides the value, so that it equals a bound that is written in decimals."""
    if spec.scale.is_integer():
        return int(spec.scale)
    whole = round(1 / spec.scale) if 1e-18 <= spec.scale < 1 else 0
    if not whole or 1 / whole != spec.scale:
        return spec.scale
    part = _Part(spec.scale)
    part.whole = whole
    return part


def duration_update(layout: Layout, bounds: tuple[float, ...], durations: HistogramCell) -> Update:
    """Return the update of the built-in histogram of durations: seconds, from the record's nanoseconds."""
    take = getter(layout, "duration")

    def observe(record: Record) -> None:
        value = take(record)
        if isinstance(value, int):
            durations.observe(bounds, value / 1_000_000_000)

    return observe


def return_update(
    layout: Layout,
    returns: ReturnType,
    bounds: tuple[float, ...],
    values: HistogramCell,
    error: Callable[[int], None],
) -> Update:
    """Return the update of the built-in metrics: a histogram of values from 0 on, and errors by number."""
    take = getter(layout, "return")

    def classify(record: Record) -> None:
        value = take(record)
        if not isinstance(value, int):
            return
        if value >= 0:
            if not returns.pointer:
                values.observe(bounds, value)
        elif value >= -MAX_ERRNO:
            error(-value)

    return classify
