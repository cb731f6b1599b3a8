"""Attaching a probe by the first of its alternatives that the kernel accepts, and controlling it there."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from kprobe_exporter.errors import ProbeRefused, sentence
from kprobe_exporter.grammar.target import Target, parse_target
from kprobe_exporter.model.aggregation import Where
from kprobe_exporter.model.hist import HistTable
from kprobe_exporter.model.records import Join, Layout
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan import JoinedSpec, ProbePlan, cannot_share
from kprobe_exporter.plan.joined import Ways
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.pair_triggers import PairTriggers, pairs_of
from kprobe_exporter.tracefs.probes import Installed, install

log = logging.getLogger(__name__)

Put: TypeAlias = Callable[[ProbeSpec, list[ProbeSpec]], Installed]
"""Installs one event next to the others. Raises ProbeRefused."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A configured probe in the kernel: one event, or the events of a call or a pair and their join.

    In ``parts`` the events that begin it come first, the one that ends it last. If the kernel joins them by
    ``pair``, the synthetic event comes after these. Not thread-safe.
    """

    spec: ProbeSpec | JoinedSpec
    parts: tuple[Installed, ...]
    joined: Join | None = None
    pair: PairTriggers | None = None

    @property
    def layout(self) -> Layout:
        """The layout of the records that feed its metrics."""
        if self.joined is not None:
            return self.joined.layout
        return self.parts[0 if self.pair is None else -1].layout

    @property
    def layouts(self) -> dict[Layout, str]:
        """The layouts of its events, each with the system of the event, in the order of reading.

        An event that ends one pair and begins the next is read as its end first.
        """
        return {part.layout: part.system for part in reversed(self.parts)}

    @property
    def residual_filter(self) -> Where | None:
        """The filter that the agent evaluates."""
        return self.spec.agent_filter if isinstance(self.spec, ProbeSpec) else self.spec.residual_filter

    @property
    def part_filters(self) -> dict[Layout, Where]:
        """The filters that the agent evaluates of the events of a call or a pair, before they are joined."""
        parts = () if self.joined is None else self.parts
        return {part.layout: only for part in parts if (only := part.spec.agent_filter) is not None}

    @property
    def tables(self) -> tuple[HistTable, ...]:
        """The hist triggers, if the kernel aggregates."""
        if isinstance(self.spec, ProbeSpec):
            return self.spec.tables
        return () if self.spec.pair is None else self.spec.pair.sums.tables

    @property
    def counted_by_kernel(self) -> bool:
        """Return whether the kernel counts its hits."""
        return all(part.counted_by_kernel for part in self.parts if part.spec.role not in ("end", "sum"))

    def enable(self) -> None:
        """Start recording; the event that ends a call or pair is enabled first. Raises ProbeRefused."""
        for part in reversed(self.parts):
            part.enable()

    def pause(self) -> None:
        """Stop recording; the kernel's counts can still be read. Never raises.

        The first events go last: they have stacks, and may share their tracepoint with the others.
        """
        for part in reversed(self.parts):
            part.pause()

    def disable(self) -> None:
        """Stop recording. Never raises."""
        if self.pair is not None:
            self.pair.detach()
        for part in self.parts:
            part.disable()

    def remove(self) -> None:
        """Disable it, and delete or retire its definitions. Never raises."""
        _take_away(self.parts, self.pair)


def each_hit_is_an_event(attached: Attached) -> bool:
    """Return whether the probe is a single event, recorded at every hit unless it is sampled."""
    spec = attached.spec
    if isinstance(spec, JoinedSpec) or spec.residual_filter is not None:
        return False
    return spec.plan == "events" and spec.filter is None


def is_of_time(attached: Attached) -> bool:
    """Return whether it is the scheduler's events, of which the time of threads is made."""
    return attached.joined is not None and attached.joined.by == "time"


def is_sampled(attached: Attached) -> bool:
    """Return whether only some threads' events are recorded."""
    return any(part.spec.sample is not None for part in attached.parts)


def settle(
    instance: Instance,
    plan: ProbePlan,
    taken: set[str],
    others: Iterable[ProbeSpec],
    explain: Callable[[Target, ProbeRefused], str] = lambda _, error: str(error),
    unreadable: Callable[[Installed], str | None] = lambda _: None,
) -> tuple[Attached | None, dict[str, str]]:
    """Install the first alternative that the kernel accepts; also return, by target, why others failed.

    ``taken`` are the event names in use, which this updates. ``others`` are the installed events.
    ``explain`` turns the kernel's refusal of a function into a sentence. ``unreadable`` returns why the
    events of an installed probe cannot be read, None if they can.
    """
    refused: dict[str, str] = {}
    there = list(others)

    def put(spec: ProbeSpec, beside: list[ProbeSpec]) -> Installed:
        if shared := cannot_share(spec, beside):
            raise ProbeRefused(shared)
        where = instance
        if spec.role in ("begin", "end") and spec.plan == "kernel" and spec.verb == "e":
            where = pairs_of(instance)  # an eprobe fires only in the instance that enabled it first (6.1)
        installed = install(where, spec, taken)
        if spec.plan == "events" and (why := unreadable(installed)):
            taken.difference_update(_take_away([installed]))
            raise ProbeRefused(sentence(why))
        return installed

    for spec in plan.alternatives:
        if isinstance(spec, JoinedSpec | ProbeSpec):
            try:
                attached = _attach(instance, put, spec, taken, there)
            except ProbeRefused as error:
                single = isinstance(spec, ProbeSpec) and spec.file == "kprobe_events"
                refused[spec.target] = explain(parse_target(spec.target), error) if single else str(error)
                if isinstance(spec, JoinedSpec) and spec.pair is not None:
                    log.info("the probe '%s': %s", spec.probe, error)
                continue
            refused.pop(spec.target, None)  # its eprobe was refused, but the tracepoint works
            return attached, refused
        refused[spec.target] = spec.reason
    return None, refused


def _attach(
    instance: Instance, put: Put, spec: ProbeSpec | JoinedSpec, taken: set[str], others: list[ProbeSpec]
) -> Attached:
    if isinstance(spec, ProbeSpec):
        return Attached(spec, (put(spec, others),))
    parts: list[Installed] = []
    pair: PairTriggers | None = None
    try:
        for ways in spec.ways:
            beside = [*others, *(part.spec for part in parts)]
            parts.append(_first(put, ways, beside))
        settled = spec.settled(part.spec for part in parts)
        if spec.pair is None:
            return Attached(settled, tuple(parts), spec.join([part.layout for part in parts]))
        pair = PairTriggers(instance, spec.pair, *parts)
        parts.append(install(pair.instance, pair.define(), taken))
        pair.attach()
    except BaseException:
        taken.difference_update(_take_away(parts, pair))
        raise
    return Attached(settled, tuple(parts), pair=pair)


def _first(put: Put, ways: Ways, beside: list[ProbeSpec]) -> Installed:
    """Install the first way that the kernel accepts. Raises ProbeRefused with the reason that tells most.

    The refusal of an eprobe tells least: a kernel without eprobes does not say so.
    """
    refused: list[tuple[int, ProbeRefused]] = []
    for way in ways:
        if isinstance(way, Unsupported):
            refused.append((1, ProbeRefused(sentence(way.reason))))
            continue
        try:
            return put(way, beside)
        except ProbeRefused as error:
            refused.append((0 if way.verb == "e" else 2, error))
    raise max(reversed(refused), key=lambda one: one[0])[1]


def _take_away(parts: Iterable[Installed], pair: PairTriggers | None = None) -> set[str]:
    """Remove these from the kernel. Return the names of events that are free again. Never raises."""
    if pair is not None:
        pair.detach()
    free = {part.event for part in parts if part.remove()}
    if pair is not None:
        pair.undefine()
    return free
