"""The plan of an engine (engine.h: struct engine_plan) from shapes, recipes, filters and joins."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from kprobe_exporter.model.aggregation import (
    OPEN,
    RECORDED_STACK,
    TIMES,
    Group,
    Recipe,
    RecordChoice,
    RecordFilter,
)
from kprobe_exporter.model.condition import Computed, Condition
from kprobe_exporter.model.joins import JoinRecipe, Joins, Steps
from kprobe_exporter.model.record_layout import Shape
from kprobe_exporter.model.records import STACK_POINTER, Join, Layout, Record
from kprobe_exporter.model.thread_times import ThreadState, ThreadTimesPlan
from kprobe_exporter.source.engine_fields import (
    FieldRef,
    JoinedShape,
    Resolve,
    field_ref,
    look_up,
    named_ref,
    resolver,
)
from kprobe_exporter.source.engine_nodes import NO_NODE, EngineNode, add_nodes
from kprobe_exporter.source.values import Names, Read

ENTIRE_SHARE = (1 << 64) - 1
KERNEL_STACK, USER_STACK = 1, 2


class ExportRule(NamedTuple):
    """A ``struct export_rule``."""

    exports: bool = False
    where: int = NO_NODE
    share: int = 0
    export: int = 0


class Role(NamedTuple):
    """A ``struct join_role``."""

    role: str = "none"
    awaited_stacks: int = 0
    join: int = 0
    variant: int = 0
    only: int = NO_NODE
    first: FieldRef = FieldRef()
    second: FieldRef = FieldRef()
    keys: tuple[FieldRef, ...] = ()
    thread_key: int = -1


class EventType(NamedTuple):
    """A ``struct event_type``."""

    id: int
    size: int
    stacks: int
    of_all_threads: bool
    of_threads: bool
    fields: tuple[FieldRef, ...]
    caller: FieldRef
    tallied: bool = False
    filter: int = NO_NODE
    first_group: int = 0
    ngroups: int = 0
    export: ExportRule = ExportRule()
    role: Role = Role()


class MetricSums(NamedTuple):
    """A ``struct group``, and how each part of its keys becomes what a record would hold."""

    group: Group
    layout_id: int
    where: int
    keys: tuple[FieldRef, ...]
    value: FieldRef
    fine_starts: tuple[int, ...]
    resolvers: tuple[Resolve | None, ...]


class JoinPlan(NamedTuple):
    """A ``struct join_plan``, with what makes it the same join after a reload."""

    join: Join
    choice: RecordChoice | None
    first_variant: int
    identity: object


class Variant(NamedTuple):
    """A ``struct join_variant``. ``make`` makes a joined record, see ``JoinRecipe``."""

    layout_id: int
    join: int
    filter: int = NO_NODE
    filtered: bool = False
    first_group: int = 0
    ngroups: int = 0
    first_open: int = 0
    nopen: int = 0
    types: tuple[int, int] = (0, 0)
    export: ExportRule = ExportRule()
    make: Callable[[Record, Record, Steps], Record] | None = None


@dataclass
class EnginePlan:
    """Everything that an engine does, as values that can be copied into its structs.

    ``look_ups`` give the values that the engine does not read from records. ``tests`` are the filters that
    only Python can evaluate, by the number of the type.
    """

    shapes: list[Shape]
    names: Names
    recipes: Mapping[int, Recipe]
    filters: Mapping[int, RecordFilter]
    joins: Joins
    of_all_threads: Collection[int]
    nodes: list[EngineNode] = field(default_factory=list)
    types: list[EventType] = field(default_factory=list)
    sums: list[MetricSums] = field(default_factory=list)
    nsingle: int = 0
    join_plans: list[JoinPlan] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    exports: dict[int, RecordChoice] = field(default_factory=dict)
    first_time: int = 0
    look_ups: list[Read] = field(default_factory=list)
    tests: dict[int, Callable[[Record], bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = {shape.layout.layout_id: number for number, shape in enumerate(self.shapes)}
        self.exports = {layout_id: choice for layout_id, choice in self._choices() if choice is not None}
        queued = []
        for number, shape in enumerate(self.shapes):
            self.types.append(self._type(number, shape))
            recipe = self.recipes.get(shape.layout.layout_id)
            if recipe is not None and (recipe.by_cgroup or recipe.by_stack):
                queued.append((number, recipe))
            elif recipe is not None:
                self._add_up(number, recipe)
        self.nsingle = len(self.sums)
        for join, wanted in enumerate(self.joins.recipes.values()):
            self._add_join(join, wanted)
        for number, recipe in queued:
            self._queue(number, recipe)
        for layout_id, event in self.joins.threads.items():
            if layout_id in self.numbers:
                number = self.numbers[layout_id]
                refs = [named_ref(self.shapes[number], name) for name in event.fields[:2]]
                refs += [FieldRef()] * (2 - len(refs))
                self._set_role(number, role=event.kind, first=refs[0], second=refs[1])
        if self.joins.times is not None:
            self._add_times(self.joins.times)

    @property
    def queues(self) -> bool:
        """Whether events wait for those of other CPUs."""
        times = self.joins.times is not None
        return times or bool(self.join_plans or self.joins.threads or self.variants or self.exports)

    def _choices(self) -> Iterable[tuple[int, RecordChoice | None]]:
        yield from ((layout_id, one.choice) for layout_id, one in self.recipes.items())
        yield from ((layout_id, one.recipe.choice) for layout_id, one in self.joins.recipes.items())

    def _type(self, number: int, shape: Shape) -> EventType:
        layout_id = shape.layout.layout_id
        only, recipe = self.filters.get(layout_id), self.recipes.get(layout_id)
        condition, rule = NO_NODE, ExportRule()
        times = self.joins.times.events if self.joins.times is not None else {}
        if only is not None and only.condition is not None:
            condition = self._add_nodes(only.condition, shape)
        elif only is not None:
            self.tests[number] = only.test
        if recipe is not None:
            if recipe.residual_filter is not None:
                condition = self._add_nodes(recipe.residual_filter.condition, shape)
            rule = self._rule(recipe, shape)
        return EventType(
            shape.id,
            max(8, shape.size),
            _stacks(shape.layout),
            layout_id in self.of_all_threads or layout_id in times,
            shape.of_threads,
            tuple(map(field_ref, shape.fields)),
            FieldRef() if shape.caller is None else FieldRef("unsigned", shape.caller.offset, 8),
            filter=condition,
            export=rule,
        )

    def _add_up(self, number: int, recipe: Recipe) -> None:
        """Add up the records of a type as they are read."""
        shape, first = self.shapes[number], len(self.sums)
        self._add_sums(recipe, shape)
        self.types[number] = self.types[number]._replace(
            tallied=True, first_group=first, ngroups=len(recipe.groups)
        )
        self._set_role(number, awaited_stacks=_awaited(recipe, shape.layout))

    def _queue(self, number: int, recipe: Recipe) -> None:
        """Add up the records of a type in the order of time."""
        shape, first = self.shapes[number], len(self.sums)
        self._set_role(
            number,
            role="single",
            join=len(self.variants),
            awaited_stacks=_awaited(recipe, shape.layout),
        )
        self._add_sums(recipe, shape)
        self.variants.append(
            Variant(
                shape.layout.layout_id,
                0,
                filtered=recipe.residual_filter is not None,
                first_group=first,
                ngroups=len(recipe.groups),
            )
        )

    def _add_sums(
        self, recipe: Recipe, shape: Shape | JoinedShape, fields: Sequence[Computed] | None = None
    ) -> None:
        """Append the groups of a recipe, and the nodes of their conditions and computed ``fields``."""
        used = {name for group in recipe.groups for name in (*group.keys, group.value)}
        computed = {
            one.name: FieldRef("computed", self._add_nodes(one.condition, shape))
            for one in (shape.layout.computed if fields is None else fields)
            if one.name in used
        }
        for group in recipe.groups:
            where = NO_NODE if group.where is None else self._add_nodes(group.where.condition, shape)
            more = (bool(group.cgroups) and not group.largest) + (group.exponential is not None)
            refs = {name: computed.get(name) or self._key_ref(shape, name) for name in group.keys}
            value = FieldRef()
            if group.value is not None:
                value = computed.get(group.value) or self._value_ref(shape, group.value)
            self.sums.append(
                MetricSums(
                    group,
                    shape.layout.layout_id,
                    where,
                    tuple(refs[name] for name in group.keys),
                    value,
                    () if group.exponential is None else _fine_starts(group.exponential.bounds),
                    (*(resolver(shape, name, self.names) for name in group.keys), *[None] * more),
                )
            )

    def _add_times(self, times: ThreadTimesPlan) -> None:
        """Append a group for each state of threads, and give the scheduler's events their roles."""
        self.first_time = len(self.sums)
        group = Group(
            TIMES, keys=("tid", RECORDED_STACK), value="duration", cgroups=(0,) if times.by_cgroup else ()
        )
        keys, resolvers = (FieldRef("tid"), FieldRef("stack")), (None,) * (2 + times.by_cgroup)
        for _ in ThreadState:
            self.sums.append(MetricSums(group, 0, NO_NODE, keys, FieldRef("elapsed"), (), resolvers))
        for layout_id, event in times.events.items():
            if layout_id not in self.numbers:
                continue
            number = self.numbers[layout_id]
            refs = [named_ref(self.shapes[number], name) for name in event.fields]
            first, second, *keys_of_switch = [*refs, *[FieldRef()] * (2 - len(refs))]
            self._set_role(
                number,
                role=event.kind,
                first=first,
                second=second,
                keys=tuple(keys_of_switch),
                awaited_stacks=_stacks(self.shapes[number].layout) & KERNEL_STACK,
            )

    def _rule(self, recipe: Recipe, shape: Shape | JoinedShape) -> ExportRule:
        """Return which records of a recipe are exported. For spans, whole traces are sampled instead."""
        choice = recipe.choice
        if choice is None:
            return ExportRule()
        where = NO_NODE if choice.where is None else self._add_nodes(choice.where.condition, shape)
        share = ENTIRE_SHARE if choice.signal == "span" else share_of(choice.share)
        return ExportRule(True, where, share, list(self.exports).index(shape.layout.layout_id))

    def _add_join(self, number: int, wanted: JoinRecipe) -> None:
        """Append a join with a variant for each of its first halves, and give these their roles."""
        join, recipe = wanted.join, wanted.recipe
        halves = [self._shape(layout) for layout in (*join.begins, join.end)]
        identity = (join, [half and half._replace(id=0) for half in halves])
        self.join_plans.append(JoinPlan(join, recipe.choice, len(self.variants), identity))
        end = halves.pop()
        for first in halves:
            self.variants.append(self._variant(number, wanted, first, end))
        own = any(begin.place("tid") is not None for begin in join.begins)
        parts = [("again" if join.again else "begin", one) for one in enumerate(join.begins)]
        parts += [("step", one) for one in enumerate(join.through)]
        parts += [] if join.again else [("end", (0, join.end))]
        for role, (variant, layout) in parts:
            shape = self._shape(layout)
            if shape is None:
                continue
            begins = role in ("begin", "again")
            only = NO_NODE
            if begins and join.only is not None:
                only = self._add_nodes(join.only.condition, shape)
            self._set_role(
                self.numbers[layout.layout_id],
                role=role,
                awaited_stacks=_awaited(recipe, layout) if begins else 0,
                join=number,
                variant=variant,
                only=only,
                thread_key=join.key.index("tid") if "tid" in join.key and not own else -1,
                first=named_ref(shape, STACK_POINTER) if join.by == "stack" else FieldRef(),
                keys=tuple(self._value_ref(shape, name)._replace(error_form="as_read") for name in join.key)
                if join.by == "key"
                else (),
            )

    def _variant(self, number: int, wanted: JoinRecipe, first: Shape | None, end: Shape | None) -> Variant:
        recipe, layout = wanted.recipe, wanted.join.layout
        made = Variant(layout.layout_id, number, first_group=len(self.sums), make=wanted.make)
        if first is None or end is None:
            return made  # such a record does not come
        shape = JoinedShape(layout, first, end)
        condition = NO_NODE
        if recipe.residual_filter is not None:
            condition = self._add_nodes(recipe.residual_filter.condition, shape)
        rule = self._rule(recipe, shape)
        self._add_sums(recipe, shape)
        first_open, nopen = len(self.sums), 0
        if (wanted_open := wanted.join.outstanding) is not None:
            groups = (Group(OPEN, value=wanted_open.weigh), Group(OPEN, (RECORDED_STACK,), wanted_open.weigh))
            self._add_sums(Recipe(groups), first, layout.computed)
            nopen = len(groups)
        return made._replace(
            first_open=first_open,
            nopen=nopen,
            filter=condition,
            filtered=recipe.residual_filter is not None,
            types=(self.numbers[first.layout.layout_id], self.numbers[end.layout.layout_id]),
            export=rule,
            ngroups=len(recipe.groups),
        )

    def _shape(self, layout: Layout) -> Shape | None:
        number = self.numbers.get(layout.layout_id)
        return None if number is None else self.shapes[number]

    def _value_ref(self, shape: Shape | JoinedShape, name: str) -> FieldRef:
        """Return where the engine gets the value that a record would hold."""
        found = look_up(shape, name, self.names)
        if found is None:
            return named_ref(shape, name)
        find, second = found
        self.look_ups.append(find)
        return FieldRef("looked_up", len(self.look_ups) - 1, second=second)

    def _key_ref(self, shape: Shape | JoinedShape, name: str) -> FieldRef:
        """Return the same for a label, of which only different values are resolved, if they can be."""
        ref = named_ref(shape, name)
        return self._value_ref(shape, name) if ref.kind == "complex" else ref

    def _add_nodes(self, condition: Condition, shape: Shape | JoinedShape) -> int:
        return add_nodes(self.nodes, [condition], shape.layout.unsigned, partial(self._value_ref, shape))

    def _set_role(self, number: int, **values: Any) -> None:
        one = self.types[number]
        self.types[number] = one._replace(role=one.role._replace(**values))


def share_of(share: float) -> int:
    """Return a share from 0 to 1 as one of ENTIRE_SHARE."""
    return min(ENTIRE_SHARE, round(share * ENTIRE_SHARE))


def _stacks(layout: Layout) -> int:
    """Return which stacks come after the events of a layout."""
    return (KERNEL_STACK if layout.stack else 0) | (USER_STACK if layout.user_stack else 0)


def _awaited(recipe: Recipe, layout: Layout) -> int:
    """Return for which stacks the events of a layout wait: those that are counted, or exported with it."""
    if recipe.by_stack:
        return _stacks(layout)
    return KERNEL_STACK if recipe.choice is not None and layout.stack else 0


def _fine_starts(bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first exponential bucket with a number of so many bits, from 0 to 65."""
    starts = (bisect_left(bounds, 1 << (bits - 1)) for bits in range(1, 65))
    return (0, *starts, len(bounds) - 1)
