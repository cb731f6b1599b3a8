"""A call or a pair: how each of its events could be attached, and how they are joined to one record."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.values import STACK_POINTER, Arg, Join, Layout, Plan, ProbeSpec, Unsupported
from kprobe_exporter.plan.metric import filter_fields, in_nanoseconds, where

MEASURED = "the time between its two events is measured"

Ways = tuple[ProbeSpec | Unsupported, ...]
"""The alternatives for one event, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class JoinedSpec:
    """One way to attach a call or a pair, pure.

    ``ways`` holds the alternatives of each begin event and, last, those of the end event. The agent
    evaluates ``residual_filter`` when it has both events.
    """

    probe: str
    kind: str
    target: str
    symbol: str
    layout_id: int
    ways: tuple[Ways, ...]
    by: Literal["stack", "key"]
    key: tuple[str, ...]
    residual_filter: Where | None
    plan: Plan = "events"
    because: str = MEASURED
    help: str = ""

    def join(self, layouts: Sequence[Layout]) -> Join:
        """Return how the installed events are joined. ``layouts`` are in the order of ``ways``."""
        *begins, end = layouts
        shared = [arg for arg in begins[0].args if all(begin.place(arg.name) is not None for begin in begins)]
        names = {arg.name for arg in shared}
        both = [*shared, *(arg for arg in end.args if arg.name not in names), Arg("duration", "int")]
        args = tuple(arg for arg in both if arg.name != STACK_POINTER)
        layout = Layout(self.layout_id, self.probe, self.probe, "joined", self.symbol, args, end.returns)
        return Join(layout, tuple(begins), end, self.by, self.key)


def joined_spec(
    probe: Probe,
    attach: Attach,
    wanted: set[str],
    layout_ids: Iterator[int],
    single: Callable[[Probe, Attach, set[str]], list[ProbeSpec | Unsupported]],
) -> JoinedSpec | Unsupported:
    """Plan the begin events, the end event and how they are joined. ``single`` plans one event."""
    assert attach.end is not None
    kind = attach.target.kind
    by_stack = kind in (Kind.CALL, Kind.UCALL)
    first = wanted | filter_fields(attach.filter)
    whole = replace(probe, aggregate="events")  # the duration needs both events, so each is recorded
    ways = [_ways(single(whole, _half(begin, by_stack), first), "begin") for begin in attach.begins]
    last = replace(whole, stack=False)
    suffix = "return" if kind.is_call else "end"
    ended = single(last, _half(attach.end, by_stack), wanted - {"comm"})  # wanted has the key's fields
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
        "stack" if by_stack else "key",
        ("tid",) if kind is Kind.SYSCALL else attach.key,
        where(in_nanoseconds(parse_filter(attach.filter, fractions=True))) if attach.filter else None,
    )


def _half(attach: Attach, by_stack: bool) -> Attach:
    """For a function, also fetch the stack pointer, by which an entry and its return are paired."""
    return replace(attach, fetch={**attach.fetch, STACK_POINTER: "$stack:u64"}) if by_stack else attach


def _ways(found: list[ProbeSpec | Unsupported], role: Literal["begin", "end"], event: str = "") -> Ways:
    """Return the ways that leave no filter to the agent, with their role set, the cheaper ones first."""
    ways: list[ProbeSpec | Unsupported] = []
    for way in found:
        if isinstance(way, Unsupported):
            ways.append(way)
        elif way.residual_filter is not None:
            reason = "this kernel cannot filter it for a pair: leave its filter out"
            ways.append(Unsupported(way.target, reason))
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
    if isinstance(way, Unsupported) or way.file is not None or way.filter is not None or way.stack:
        return False
    return not way.layout.pattern and all(arg.kind != "comm" for arg in way.layout.args)
