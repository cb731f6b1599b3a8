"""What a layout's records are needed for, written as data, so that a source can add them up itself.

The functions that `updates` compiles do the same for one record at a time. Tests hold both ways to the same
results.
"""

from collections.abc import Callable, Iterator

from kprobe_exporter.aggregate.series import Series
from kprobe_exporter.aggregate.updates import HistogramCell, whole_scale
from kprobe_exporter.model.aggregation import Condition, Group, Recipe, Refused, Tally
from kprobe_exporter.model.values import MAX_ERRNO, Layout, MetricSpec, ProbeMetrics, ReturnType, Where

SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
"""The limits of the numbers that a field can hold, signed or not."""

Take = Callable[[Tally], None]

ERRORS: Condition = ("all", (("number", "return", ">=", -MAX_ERRNO), ("number", "return", "<", 0)))
VALUES: Condition = ("number", "return", ">=", 0)


def recipe(layout: Layout, metrics: ProbeMetrics, residual_filter: Where | None) -> Recipe | None:
    """Return all that the records of ``layout`` are needed for; None if the records themselves are needed.

    Records are needed for patterns of strings; for stacks, arrays and cgroups in labels; and for conditions
    on values that the record does not hold.
    """
    wheres = [spec.where for spec in metrics.metrics if spec.where is not None] + (
        [residual_filter] if residual_filter else []
    )
    groups = [_group(spec) for spec in metrics.metrics]
    if layout.returns is not None and layout.place("return") is not None:
        groups += return_groups(layout.returns, metrics.return_buckets)
    if any(label.of_thread for spec in metrics.metrics for label in spec.labels):
        return None  # a thread's cgroup is known only at the event's place in the stream
    if layout.stack or not all(_writable(where, layout) for where in wheres):
        return None
    kinds = {arg.name: arg.type or arg.kind for arg in layout.args}
    numbers = {kinds.get(group.value) for group in groups if group.value is not None}
    keys = {kinds.get(key, "") for group in groups for key in group.keys}
    if numbers & {"char", "symbol", "comm"} or "texts" in keys or any("[" in kind for kind in keys):
        return None
    return Recipe(tuple(groups), residual_filter.condition if residual_filter else None)


def _writable(where: Where, layout: Layout) -> bool:
    """Return whether a condition is one on plain numbers and strings of the record."""
    plain = {arg.name for arg in layout.args if arg.kind in ("int", "hex", "str", "bare") and not arg.type}
    looked_up = {arg.name for arg in layout.args} | {"pid", "caller", "symbol", "comm"}
    return where.condition is not None and not looked_up.difference(plain).intersection(where.fields)


def return_groups(returns: ReturnType, bounds: tuple[float, ...]) -> Iterator[Group]:
    """Yield the built-in groups of a return value: errors, then the histogram of values from 0 on."""
    yield Group(keys=("return",), where=ERRORS)
    if not returns.pointer:
        yield Group(value="return", bounds=thresholds(bounds, 1), where=VALUES)


def thresholds(bounds: tuple[float, ...], scale: float) -> tuple[int, ...]:
    """Return for each bucket the greatest whole number whose product with ``scale`` is within the bound.

    The multiplication is the same as that of a single value, so that rounding changes no bucket.
    """
    return tuple(_greatest(bound, scale) for bound in bounds)


def _greatest(bound: float, scale: float) -> int:
    """Return the greatest number whose product is at most ``bound``; SMALLEST - 1 if there is none."""
    low, high = SMALLEST - 1, LARGEST
    while low < high:
        middle = (low + high + 1) // 2
        if middle * scale <= bound:
            low = middle
        else:
            high = middle - 1
    return low


def _group(spec: MetricSpec) -> Group:
    return Group(
        keys=tuple(label.field for label in spec.labels),
        value=spec.value,
        bounds=thresholds(spec.buckets, whole_scale(spec)) if spec.kind == "histogram" else None,
        last=spec.kind == "gauge",
        positive=spec.kind == "counter",
        where=spec.where.condition if spec.where else None,
    )


def counter_take(spec: MetricSpec, series: Series[list[float]]) -> Take:
    """Return the function that adds a tally to a counter."""
    scale, counts = whole_scale(spec), spec.value is None

    def add(tally: Tally) -> None:
        cell = series.cell(tally.key, tally.events)
        cell[0] += tally.events if counts else tally.sum * scale

    return add


def gauge_take(spec: MetricSpec, series: Series[list[float]]) -> Take:
    """Return the function that sets a gauge to the last value of a tally."""
    scale = whole_scale(spec)

    def keep(tally: Tally) -> None:
        series.cell(tally.key, tally.events)[0] = tally.sum * scale

    return keep


def histogram_take(spec: MetricSpec, series: Series[HistogramCell]) -> Take:
    """Return the function that adds the buckets of a tally to a histogram."""
    scale = whole_scale(spec)

    def observe(tally: Tally) -> None:
        assert tally.buckets is not None
        series.cell(tally.key, tally.events).add(tally.buckets, tally.sum * scale)

    return observe


def return_takes(values: HistogramCell, errors: dict[int, int]) -> list[Take]:
    """Return the functions that take the tallies of ``return_groups``."""

    def count(tally: Tally) -> None:
        (number,) = tally.key
        assert isinstance(number, int)
        errors[-number] = errors.get(-number, 0) + tally.events

    def observe(tally: Tally) -> None:
        assert tally.buckets is not None
        values.add(tally.buckets, tally.sum)

    return [count, observe]


def refuse_many(refused: Refused, refuse: Callable[[str, int], None]) -> None:
    """Report the values that could not be taken."""
    if refused.negative:
        refuse("negative", refused.negative)
    if refused.unreadable:
        refuse("unreadable", refused.unreadable)
