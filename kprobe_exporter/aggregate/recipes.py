"""What a layout's records are needed for, written as data, so that a source can add them up itself."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from kprobe_exporter.model.aggregation import (
    DURATIONS,
    RETURN_ERRORS,
    RETURN_VALUES,
    Group,
    Recipe,
    Where,
)
from kprobe_exporter.model.values import (
    MAX_ERRNO,
    Layout,
    MetricSpec,
    ProbeMetrics,
    ReturnType,
    Value,
    decimal,
    is_error,
)

SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
"""The limits of the numbers that a field can hold, signed or not."""

ERRORS = Where(
    ("return",),
    lambda event: is_error(event["return"]),
    ("all", (("number", "return", ">=", -MAX_ERRNO), ("number", "return", "<", 0))),
)


def _no_error(event: Mapping[str, Value]) -> bool:
    value = event["return"]
    return isinstance(value, int) and value >= 0


NO_ERRORS = Where(("return",), _no_error, ("number", "return", ">=", 0))


def recipe(layout: Layout, metrics: ProbeMetrics, residual_filter: Where | None = None) -> Recipe:
    """Return all that the records of ``layout`` are needed for."""
    groups = [_group(number, spec) for number, spec in enumerate(metrics.metrics)]
    if layout.returns is not None and layout.place("return") is not None:
        groups += _return_groups(layout.returns, metrics.return_buckets)
    if metrics.duration_buckets and layout.place("duration") is not None:
        bounds = thresholds(metrics.duration_buckets, 1e-9)
        groups.append(Group(DURATIONS, value="duration", bounds=bounds))
    return Recipe(tuple(groups), residual_filter)


def source_recipe(layout: Layout, metrics: ProbeMetrics, residual_filter: Where | None) -> Recipe | None:
    """Return the recipe with which the source can add up the records; None if it has to deliver them.

    Records are needed for patterns of strings; for stacks, arrays and cgroups in labels; and for conditions
    on values that the record does not hold.
    """
    made = recipe(layout, metrics, residual_filter)
    groups = made.groups
    wheres = [where for where in (residual_filter, *(group.where for group in groups)) if where is not None]
    if any(group.cgroups for group in groups):
        return None  # a thread's cgroup is known only at the event's place in the stream
    if layout.stack or not all(_writable(where, layout) for where in wheres):
        return None
    kinds = {arg.name: arg.type or arg.kind for arg in layout.args}
    numbers = {kinds.get(group.value) for group in groups if group.value is not None}
    keys = {kinds.get(key, "") for group in groups for key in group.keys}
    if (
        numbers & {"char", "symbol", "comm", "program"}
        or "texts" in keys
        or any("[" in kind for kind in keys)
    ):
        return None
    return made


def _writable(where: Where, layout: Layout) -> bool:
    """Return whether a condition is one on plain numbers and strings of the record."""
    plain = {arg.name for arg in layout.args if arg.kind in ("int", "hex", "str", "bare") and not arg.type}
    looked_up = {arg.name for arg in layout.args} | {"pid", "caller", "symbol", "comm"}
    return where.condition is not None and not looked_up.difference(plain).intersection(where.fields)


def _group(number: int, spec: MetricSpec) -> Group:
    return Group(
        number,
        keys=tuple(label.field for label in spec.labels),
        value=spec.value,
        bounds=thresholds(spec.buckets, spec.scale) if spec.kind == "histogram" else None,
        last=spec.kind == "gauge",
        positive=spec.kind == "counter",
        where=spec.where,
        cgroups=tuple(index for index, label in enumerate(spec.labels) if label.of_thread),
    )


def _return_groups(returns: ReturnType, bounds: tuple[float, ...]) -> Iterator[Group]:
    """Yield the built-in groups of a return value: errors, then the histogram of values from 0 on."""
    yield Group(RETURN_ERRORS, keys=("return",), where=ERRORS)
    if bounds and not returns.pointer:
        yield Group(RETURN_VALUES, value="return", bounds=thresholds(bounds, 1), where=NO_ERRORS)


@lru_cache(256)
def thresholds(bounds: tuple[float, ...], scale: float) -> tuple[int, ...]:
    """Return for each bucket the greatest whole number whose product with ``scale`` is within the bound.

    Bounds and scale are the decimal numbers that a person writes: 3 * 1.1 is within 3.3, though the product
    of the floats is not. SMALLEST - 1 stands for a bucket into which no number falls.
    """
    factor = decimal(scale)
    return tuple(max(SMALLEST - 1, min(int(decimal(bound) // factor), LARGEST)) for bound in bounds)


class _Part(float):
    """The reciprocal of a whole number, to divide by: 1000 / 1e9 is 1e-06, and 1000 * 1e-9 is a bit more."""

    whole: int

    def __rmul__(self, value: float) -> float:
        return value / self.whole


def whole_scale(scale: float) -> float:
    """Return the factor, to be used as the right operand. A whole factor stays an int, so that large counts
    stay exact. A reciprocal divides the value, so that it equals a bound that is written in decimals."""
    if scale.is_integer():
        return int(scale)
    whole = round(1 / scale) if 1e-18 <= scale < 1 else 0
    if not whole or 1 / whole != scale:
        return scale
    part = _Part(scale)
    part.whole = whole
    return part


NANOSECONDS = whole_scale(1e-9)
"""The factor from a record's nanoseconds to seconds."""
