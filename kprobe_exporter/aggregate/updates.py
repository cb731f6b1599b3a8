"""Compiling what one event does to one metric: a function from a record to the cell that it changes."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter

from kprobe_exporter.aggregate.series import Series
from kprobe_exporter.model.values import (
    CALLER,
    CPU,
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
"""Told the reason why an event's value could not be taken."""

MAX_ERRNO = 4095
"""include/linux/err.h: a return value from -MAX_ERRNO to -1 is an error."""

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
        """Take what many values came to."""
        self.counts = [*map(int.__add__, self.counts, counts)]
        self.sum += total

    def exemplify(self, bounds: Sequence[float], exemplar: Exemplar) -> None:
        """Keep the last one of its bucket."""
        self.exemplars[bisect_left(bounds, exemplar.value)] = exemplar

    def value(self, bounds: tuple[float, ...]) -> HistogramValue:
        return HistogramValue(bounds, tuple(self.counts), self.sum, dict(self.exemplars))


def normal_return(returns: ReturnType) -> Callable[[Value], Value]:
    """How a return value is to be read where its width is a guess: errors become negative.

    The upper half of the register is garbage for a C ``int``, so 2**32-4095 … 2**32-1 is an error
    read too wide; of a pointer, the last 4095 addresses are ERR_PTRs.
    """
    wrap = 1 << 32 if returns.wide else 1 << 64 if returns.pointer else 0
    if not wrap:
        return lambda value: value
    lowest = wrap - MAX_ERRNO

    def normal(value: Value) -> Value:
        if isinstance(value, int) and lowest <= value < wrap:
            return value - wrap
        return value

    return normal


def getter(layout: Layout, field: str) -> Getter:
    """The function that takes ``field`` out of a record of this layout; None where it is not recorded."""
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
    """The function that takes the fields of all labels out of a record at once."""
    if not labels:
        return lambda record: ()
    fields = [label.field for label in labels]
    getters = [_label_getter(layout, label, cgroup) for label in labels]
    if len(getters) == 1:
        (only,) = getters
        return lambda record: (only(record),)
    if all(isinstance(take, itemgetter) for take in getters):
        places = [PLACES.get(field) or layout.place(field) for field in fields]
        return itemgetter(*places)
    return lambda record: tuple([take(record) for take in getters])


def _label_getter(layout: Layout, label: LabelSpec, cgroup: CgroupOf | None) -> Getter:
    """A label's field, or the cgroup of the thread that it names."""
    take = getter(layout, label.field)
    if not label.of_thread:
        return take

    def path(record: Record) -> bytes | None:
        tid = take(record)
        return cgroup(tid, record[TIME]) if cgroup is not None and isinstance(tid, int) else None

    return path


def passes(layout: Layout, where: Where) -> Callable[[Record], bool]:
    """The function that tells whether a record passes a filter. Costs about 1 µs an event."""
    getters = [(field, getter(layout, field)) for field in where.fields]
    test = where.test
    return lambda record: test({field: take(record) for field, take in getters})


def guarded(test: Callable[[Record], bool], update: Update) -> Update:
    """The update, for the records that pass."""

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
    """Add 1, or the value; a negative or unreadable one is refused."""
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
    """Keep the last value."""
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
    """Put the value into its bucket."""
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
    """One part of a whole number, as 1e-9: 1000 / 1e9 is 1e-06, and 1000 * 1e-9 is a bit more."""

    whole: int

    def __rmul__(self, value: float) -> float:
        return value / self.whole


def whole_scale(spec: MetricSpec) -> float:
    """The factor, which is multiplied from the right; a whole one stays whole, so that large counts stay
    exact, and by its parts a value is divided, so that it meets a bound that is written in decimals."""
    if spec.scale.is_integer():
        return int(spec.scale)
    whole = round(1 / spec.scale) if 1e-18 <= spec.scale < 1 else 0
    if not whole or 1 / whole != spec.scale:
        return spec.scale
    part = _Part(spec.scale)
    part.whole = whole
    return part


def duration_update(layout: Layout, bounds: tuple[float, ...], durations: HistogramCell) -> Update:
    """The built-in histogram of durations, in seconds; records have nanoseconds."""
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
    """The built-in metrics of a return value: a histogram of what is not negative, errors by number."""
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
