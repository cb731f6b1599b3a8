"""A call or a pair: how each of its events could be attached, and how they are joined to one record."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from kprobe_exporter.config.model import Attach, Probe
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.condition import Computed, decided_by, fields_of
from kprobe_exporter.model.pairs import KernelPair
from kprobe_exporter.model.records import COMMON, PLACES, PREVIOUS, STACK_POINTER, Join, Layout, Outstanding
from kprobe_exporter.model.specs import Plan, ProbeSpec, Unsupported
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import where

MEASURED = "the time between its two events is measured"
ADDED_UP = "the time of threads is made of these events"

TIME_ARGS = (Arg("class", "str"), Arg("duration", "int"))
"""The fields of a part of a thread's time."""

OF_THREAD = {short: name for name, short in COMMON.items()}
"""The short names that may also be fields of an event, and those that mean the thread."""

Single = Callable[[Probe, Attach, set[str]], list[ProbeSpec | Unsupported]]
"""Plans one event: returns what to try, in order."""

Ways = tuple[ProbeSpec | Unsupported, ...]
"""The alternatives for one event, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class JoinedSpec:
    """One way to attach a call or a pair, pure.

    ``ways`` holds the alternatives of each begin event, of each event in between, and of the end event.
    ``through`` are the fields with the times of those in between. The agent evaluates ``residual_filter``
    when it has both events. ``again``: there is one event, and each is joined with the one before it.
    With ``pair`` the kernel joins them.
    """

    probe: str
    kind: str
    target: str
    symbol: str
    layout_id: int
    ways: tuple[Ways, ...]
    by: Literal["stack", "key", "time"]
    key: tuple[str, ...]
    residual_filter: Where | None
    through: tuple[str, ...] = ()
    again: bool = False
    outstanding: Outstanding | None = None
    plan: Plan = "events"
    because: str = MEASURED
    help: str = ""
    absent: frozenset[str] = frozenset()
    computed: tuple[Computed, ...] = ()
    pair: KernelPair | None = None

    def settled(self, chosen: Iterable[ProbeSpec]) -> "JoinedSpec":
        """Return it with what is to be said of the events as they are attached, each sentence once."""
        notes = dict.fromkeys(spec.note for spec in chosen if spec.note)
        return replace(self, because="; ".join([self.because, *notes]))

    def join(self, layouts: Sequence[Layout]) -> Join:
        """Return how the installed events are joined. ``layouts`` are in the order of ``ways``."""
        if self.again:
            return self._with_next(layouts[0])
        *others, end = layouts
        if self.by == "time":
            layout = Layout(self.layout_id, self.probe, self.probe, "joined", self.symbol, TIME_ARGS)
            return Join(layout, tuple(others), end, self.by)
        nbegins = len(others) - len(self.through)
        begins, through = others[:nbegins], tuple(others[nbegins:])
        found: dict[str, Arg] = {}
        for arg in (arg for begin in begins for arg in begin.args):
            found.setdefault(arg.name, arg)
        shared = [arg for arg in found.values() if all(begin.place(arg.name) is not None for begin in begins)]
        entered = {arg.name for arg in shared} | OF_THREAD.keys() | COMMON.keys()
        times = [Arg(name, "int") for name in ("duration", *self.through)]
        both = [*shared, *(arg for arg in end.args if arg.name not in entered), *times]
        hidden = frozenset[str]().union(*(layout.hidden for layout in layouts))
        args = tuple(arg._replace(guards=()) for arg in both if arg.name not in hidden)
        layout = Layout(self.layout_id, self.probe, self.probe, "joined", self.symbol, args, end.returns)
        words = tuple({**dict(end.names), **dict(begins[0].names)}.items())
        layout = replace(layout, absent=self.absent, computed=self.computed, names=words, steps=self.through)
        first = {arg.name for arg in shared} | PLACES.keys() - {"caller"}
        only = _decided(self.residual_filter, first)
        return Join(layout, tuple(begins), end, self.by, self.key, only, through, self.outstanding)

    def _with_next(self, one: Layout) -> Join:
        """Return how each event is joined with the one before it."""
        args = [arg._replace(guards=()) for arg in one.args if arg.name not in one.hidden]
        before = [arg._replace(name=f"{PREVIOUS}{arg.name}") for arg in args]
        both = (*args, *before, Arg("duration", "int"))
        words = (*one.names, *((f"{PREVIOUS}{name}", some) for name, some in one.names))
        layout = Layout(self.layout_id, self.probe, self.probe, "joined", self.symbol, both, one.returns)
        layout = replace(layout, absent=self.absent, computed=self.computed, names=words)
        return Join(layout, (one,), one, self.by, self.key, outstanding=self.outstanding)


def joined_spec(
    probe: Probe,
    attach: Attach,
    wanted: set[str],
    layout_ids: Iterator[int],
    single: Single,
    plan: Literal["events", "kernel"] = "events",
) -> JoinedSpec | Unsupported:
    """Plan the begin events, the end event and how they are joined. ``single`` plans one event."""
    assert attach.end is not None
    kind = attach.target.kind
    by_stack = kind in (Kind.CALL, Kind.UCALL)
    if kind is Kind.SYSCALL:  # an argument of its tracepoint is meant only where it is fetched
        wanted = {OF_THREAD.get(name, name) for name in wanted}
    first = {name.removeprefix(PREVIOUS) for name in wanted} if attach.again else wanted
    # The duration needs both events, so each is recorded, and its stacks are counted when they are joined.
    whole = replace(probe, aggregate=plan, stacks=None)
    last = replace(whole, stack=False, user_stack=False)
    ways = [
        _ways(single(last if attach.of_time and number else whole, _half(begin, by_stack), first), "begin")
        for number, begin in enumerate(attach.begins)
    ]
    for number, step in enumerate(attach.through.values(), 1):
        between = single(last, step, {*attach.key})
        ways.append(_ways(between, "end", f"{probe.name}_step{number}"))
    suffix = "return" if attach.target.is_call else "end"
    # The thread and its CPU are the first event's. Only the return of a function of the kernel tells who
    # called it.
    entered = {*COMMON, *OF_THREAD, *(["caller"] if kind is Kind.UCALL else [])} - {*attach.key}
    if not attach.again:
        ended = single(last, _half(attach.end, by_stack), wanted - entered)
        ways.append(_ways(ended, "end", f"{probe.name}_{suffix}"))
    for half in ways:
        if all(isinstance(way, Unsupported) for way in half):
            reasons = dict.fromkeys(way.reason.rstrip(".") for way in half if isinstance(way, Unsupported))
            return Unsupported(str(attach.target), "; ".join(reasons))
    return JoinedSpec(
        probe.name,
        kind.value,
        str(attach.target),
        attach.target.symbol or str(attach.target),
        next(layout_ids),
        tuple(ways),
        "time" if attach.of_time else "stack" if by_stack else "key",
        ("tid",) if kind is Kind.SYSCALL else attach.key,
        where(parse_filter(attach.filter, fractions=True), probe.times) if attach.filter else None,
        tuple(attach.through),
        attach.again,
        probe.outstanding,
        plan=plan,
        because=ADDED_UP if attach.of_time else MEASURED,
        absent=attach.absent,
    )


def _decided(where: Where | None, names: Set[str]) -> Where | None:
    """Return the part of a filter that these fields decide."""
    condition = decided_by(where.condition, names) if where else None
    return Where(tuple(sorted(fields_of(condition))), condition) if condition else None


def _half(attach: Attach, by_stack: bool) -> Attach:
    """For a function, also fetch the stack pointer, by which an entry and its return are paired."""
    return replace(attach, fetch={**attach.fetch, STACK_POINTER: "$stack:u64"}) if by_stack else attach


def _ways(found: list[ProbeSpec | Unsupported], role: Literal["begin", "end"], event: str = "") -> Ways:
    """Return the ways with their role set, the cheaper ones first."""
    ways: list[ProbeSpec | Unsupported] = []
    for way in found:
        if isinstance(way, Unsupported):
            ways.append(way)
        else:
            layout = replace(way.layout, event=event) if event and way.file else way.layout
            ways.append(replace(way, role=role, layout=layout, because=MEASURED))
    return tuple(sorted(ways, key=lambda way: not _is_plain(way)))


def _is_plain(way: ProbeSpec | Unsupported) -> bool:
    """Whether it is a tracepoint's own event, and records no less than an eprobe on it.

    An eprobe costs the call a quarter more, because the kernel fills in the tracepoint's event before the
    eprobe copies from it (kernel/trace/trace_eprobe.c). Only an eprobe has a filter of its own, the
    thread's name at that moment, and quotes around strings in text.
    """
    if isinstance(way, Unsupported) or way.file is not None or way.stack:
        return False
    if way.filter is not None or way.residual_filter is not None:
        return False
    cut = any(arg.field.startswith("__") for arg in way.layout.args)  # a copied string, as __filename_val
    return not (way.layout.pattern or cut) and all(arg.kind != "comm" for arg in way.layout.args)
