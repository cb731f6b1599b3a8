"""The uses of a layout's records, as data, so that a source can add them up; and their fields."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import floor
from operator import itemgetter
from typing import Any, TypeAlias

from kprobe_exporter.aggregate.interpret import compile_condition
from kprobe_exporter.aggregate.native import exponential
from kprobe_exporter.model.aggregation import (
    DURATIONS,
    RECORDED_STACK,
    RETURN_ERRORS,
    RETURN_VALUES,
    STACKS,
    WORST,
    Group,
    Recipe,
    RecordChoice,
    RecordFilter,
    Where,
)
from kprobe_exporter.model.condition import Computed
from kprobe_exporter.model.joins import JoinRecipe
from kprobe_exporter.model.records import (
    LAYOUT_ID,
    PLACES,
    Join,
    Layout,
    Record,
)
from kprobe_exporter.model.specs import BY_THREAD, OF_PROCESS, PROCESS, MetricSpec, ProbeMetrics
from kprobe_exporter.model.values import LARGEST, MAX_ERRNO, SMALLEST, Value, unscaled

Getter: TypeAlias = Callable[[Record], Value]

ERRORS = Where(
    ("return",),
    ("all", (("number", "return", ">=", -MAX_ERRNO), ("number", "return", "<", 0))),
)

NO_ERRORS = Where(
    ("return",),
    ("number", "return", ">=", 0),
)


def recipe(layout: Layout, metrics: ProbeMetrics, residual_filter: Where | None = None) -> Recipe:
    """Return all that the records of ``layout`` are needed for."""
    groups = [
        _labelled(number, spec)._replace(
            bounds=thresholds(spec.buckets, spec.scale) if spec.kind == "histogram" else None,
            exponential=exponential(spec.scale) if spec.native else None,
            last=spec.kind == "gauge",
            positive=spec.kind == "counter",
            where=spec.where,
        )
        for number, spec in enumerate(metrics.metrics)
    ]
    if metrics.worst is not None:
        groups.append(_labelled(WORST, metrics.worst.as_metric)._replace(largest=True))
    if layout.returns is not None and layout.place("return") is not None:
        groups.append(Group(RETURN_ERRORS, keys=("return",), where=ERRORS))
        if metrics.return_buckets and not layout.returns.pointer:
            bounds = thresholds(metrics.return_buckets, 1)
            finer = exponential(1) if metrics.native else None
            groups.append(
                Group(RETURN_VALUES, value="return", bounds=bounds, where=NO_ERRORS, exponential=finer)
            )
    if metrics.duration_buckets and layout.place("duration") is not None:
        bounds = thresholds(metrics.duration_buckets, 1e-9)
        finer = exponential(1e-9) if metrics.native else None
        groups.append(Group(DURATIONS, value="duration", bounds=bounds, exponential=finer))
    return Recipe(tuple(groups), residual_filter)


def _labelled(feeds: int, spec: MetricSpec) -> Group:
    """Return the group of a metric with its value and its labels."""
    by_thread = [(index, label) for index, label in enumerate(spec.labels) if label.first in BY_THREAD]
    return Group(
        feeds,
        keys=(*(label.field for label in spec.labels), *spec.selects_by, *_process(spec)),
        value=spec.value,
        cgroups=tuple(index for index, _ in by_thread),
        facts=tuple(label.first if label.first in OF_PROCESS else "" for _, label in by_thread),
    )


def _process(spec: MetricSpec) -> tuple[str, ...]:
    """Return the process, the last key where an address in it is a label."""
    return (PROCESS,) if spec.of_program else ()


def counted_stacks(weigh: str | None) -> Group:
    """Return the group that counts the stacks of records, weighed by a field; errors have no weight."""
    return Group(STACKS, keys=(RECORDED_STACK,), value=weigh, positive=weigh is not None)


def source_recipe(
    layout: Layout,
    metrics: ProbeMetrics,
    residual_filter: Where | None,
    stacks: Group | None = None,
    choice: RecordChoice | None = None,
) -> Recipe | None:
    """Return the recipe with which the source can add up the records; None if it has to deliver them.

    ``stacks`` is the group that counts their stacks, and ``choice`` says which are exported.
    """
    made = _with(recipe(layout, metrics, residual_filter), stacks, choice)
    return None if _needs_stacks(made, layout) else made


def _with(made: Recipe, stacks: Group | None, choice: RecordChoice | None) -> Recipe:
    groups = made.groups if stacks is None else (*made.groups, stacks)
    return made._replace(groups=groups, choice=choice)


def _needs_stacks(made: Recipe, *layouts: Layout) -> bool:
    """Return whether the stack of each record is needed, which is only delivered with the record."""
    if made.by_stack or made.choice is not None:
        return False
    return any(layout.stack or layout.user_stack for layout in layouts)


def join_recipe(
    join: Join,
    metrics: ProbeMetrics,
    residual_filter: Where | None,
    stacks: Group | None = None,
    choice: RecordChoice | None = None,
) -> JoinRecipe | None:
    """Return how the source can join these events and add up the joined records.

    None if it has to deliver the events. ``stacks`` is the group that counts the stacks of first events, and
    ``choice`` says which records are exported.
    """
    made = _with(recipe(join.layout, metrics, residual_filter), stacks, choice)
    return None if _needs_stacks(made, join.layout, *join.parts) else JoinRecipe(join, made)


def record_filters(filters: Iterable[Mapping[Layout, Where]]) -> dict[int, RecordFilter]:
    """Return, by layout_id, the filters by which the source chooses the records that it delivers."""
    return {
        layout.layout_id: RecordFilter(passes(layout, where), where.condition)
        for some in filters
        for layout, where in some.items()
    }


@lru_cache(256)
def thresholds(bounds: tuple[float, ...], scale: float) -> tuple[int, ...]:
    """Return for each bucket the greatest whole number whose product with ``scale`` is within the bound.

    Bounds and scale are the decimal numbers that a person writes: 3 * 1.1 is within 3.3, though the product
    of the floats is not. SMALLEST - 1 stands for a bucket into which no number falls.
    """
    return tuple(max(SMALLEST - 1, min(floor(unscaled(bound, scale)), LARGEST)) for bound in bounds)


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


def signed_errors(wrap: int) -> Callable[[Value], Value]:
    """Return the function that makes errors negative, see ``ReturnType.wrap``."""
    if not wrap:
        return lambda value: value
    lowest = wrap - MAX_ERRNO
    return lambda value: value - wrap if isinstance(value, int) and lowest <= value < wrap else value


def column(layout: Layout, field: str) -> tuple[int, Callable[[Value], Value] | None]:
    """Return the index of ``field`` in a record, and the function that converts the value there, if any.

    A field that a record does not hold has the layout's number converted to its one value, or to None.
    """
    place = layout.place(field)
    if place is None and field == "symbol":
        symbol = layout.symbol.encode()
        return LAYOUT_ID, lambda _: symbol
    if place is None and (place := PLACES.get(field)) is None:
        return LAYOUT_ID, lambda _: None
    if field == "return" and layout.returns is not None and layout.returns.wrap:
        return place, signed_errors(layout.returns.wrap)
    return place, None


def getter(layout: Layout, field: str) -> Getter:
    """Return the function that takes ``field`` out of a record; it gives None where it is not recorded."""
    for one in layout.computed:
        if one.name == field:
            return _computed(layout, one)
    place, convert = column(layout, field)
    take: Getter = itemgetter(place)
    return take if convert is None else lambda record: convert(take(record))


def _computed(layout: Layout, field: Computed) -> Getter:
    getters = [(name, getter(layout, name)) for name in field.fields]
    compute = compile_condition(field.condition, layout.unsigned)
    return lambda record: compute({name: take(record) for name, take in getters})


def tuple_getter(places: Sequence[int]) -> Callable[[Record], tuple[Any, ...]]:
    """Return the function that takes these places as a tuple, for which itemgetter needs two or more."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1)) if places else lambda record: ()


def passes(layout: Layout, where: Where) -> Callable[[Record], bool]:
    """Return the function that tells whether a record passes a filter. It costs about 1 µs an event."""
    getters = [(field, getter(layout, field)) for field in where.fields]
    test = compile_condition(where.condition, layout.unsigned)
    return lambda record: bool(test({field: take(record) for field, take in getters}))
