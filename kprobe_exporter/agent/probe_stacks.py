"""The counted stacks of all probes; those that the kernel counts are read when they are asked for."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.stack_counts import StackCounts, StackDeltas, StackRoom
from kprobe_exporter.config.model import Probe, Stacks
from kprobe_exporter.model.records import Join
from kprobe_exporter.model.stacks import Profile, StackTally
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.tracefs.stack_tables import StackTrigger

OpenStacks: TypeAlias = Callable[[int], tuple[list[StackTally], int]]

OUTSTANDING = ".outstanding"
"""Follows a probe's name, which has no dot, and means the stacks of its calls or pairs that have not
ended."""

log = logging.getLogger(__name__)


class ProbeStacks:
    """The stacks of every probe that has ``stacks``, kept over reloads that leave their weight as it is.

    One thread changes it; any may ask for a profile. ``_lock`` is held while a table is read, which takes the
    kernel about 10 ms for 1,000 stacks; no reader of events and no scrape takes it.
    """

    def __init__(self, limits: SeriesLimits, programs: ProgramStacks) -> None:
        self._limits, self._programs = limits, programs
        self._lock = threading.Lock()
        self._room = StackRoom()
        self._counts: dict[str, StackCounts] = {}
        self._kept: dict[str, Stacks] = {}  # what they were made for, whatever their number
        self._tables: dict[str, list[tuple[Attached, StackTrigger, StackDeltas]]] = {}
        self._joins: dict[str, list[Join]] = {}  # those of which it is asked what is outstanding

    def redeclare(self, probes: Iterable[Probe]) -> None:
        """Keep exactly the stacks of these probes."""
        with self._lock:
            found: dict[str, StackCounts] = {}
            for probe in probes:
                if probe.stacks is None:
                    continue
                counts = self._counts.get(probe.name)
                stacks = probe.stacks._replace(most=0)
                if counts is None or self._kept[probe.name] != stacks:
                    weigh, _, user, interrupted, rooted = stacks
                    counts = StackCounts(
                        probe.name,
                        weigh,
                        probe.stacks.most,
                        self._limits,
                        user=user,
                        interrupted=interrupted,
                        rooted=rooted,
                        room=self._room,
                    )
                    self._kept[probe.name] = stacks
                counts.most = probe.stacks.most
                found[probe.name] = counts
            for counts in self._counts.values():
                if found.get(counts.probe) is not counts:
                    counts.close()
            self._counts = found

    def attach(self, attached: Attached) -> None:
        """Count the stacks of a probe that was attached, if the kernel counts them."""
        name = attached.spec.probe
        with self._lock:
            if (counts := self._counts.get(name)) is None:
                return
            if attached.joined is not None and attached.joined.outstanding is not None:
                self._joins.setdefault(name, []).append(attached.joined)
            for part in attached.parts:
                if part.stacks is not None:
                    self._tables.setdefault(name, []).append((attached, part.stacks, StackDeltas(counts)))

    def detach(self, attached: Attached) -> None:
        """Read the tables of a probe for the last time, before it is removed."""
        name = attached.spec.probe
        with self._lock:
            if joins := [one for one in self._joins.pop(name, ()) if one is not attached.joined]:
                self._joins[name] = joins
            self._read(name)
            tables = [one for one in self._tables.pop(name, ()) if one[0] is not attached]
            if tables:
                self._tables[name] = tables

    def of(self, name: str) -> StackCounts | None:
        """Return where the stacks of a probe are counted; None if they are not."""
        return self._counts.get(name)

    def lost(self) -> dict[str, int]:
        """Return each probe's hits whose stack is lost, as far as the tables of the kernel were read."""
        return {name: counts.lost for name, counts in self._counts.items()}

    def profile(self, name: str, stacks_of: OpenStacks) -> Profile | None:
        """Return the stacks of a probe so far; None if they are not counted.

        For the probe's name with OUTSTANDING behind it, return those with which what is outstanding began.
        ``stacks_of`` returns them for a joined layout, and the number of those without a stack.
        """
        if name.endswith(OUTSTANDING):
            return self._outstanding(name.removesuffix(OUTSTANDING), stacks_of)
        with self._lock:
            self._read(name)
        counts = self._counts.get(name)
        return None if counts is None else self._programs.profile(counts)

    def _outstanding(self, name: str, stacks_of: OpenStacks) -> Profile | None:
        with self._lock:
            declared, joins = self._counts.get(name), list(self._joins.get(name, ()))
        if declared is None or not joins:
            return None
        assert joins[0].outstanding is not None
        weigh = joins[0].outstanding.weigh
        counts = StackCounts(name, weigh, declared.most, self._limits, user=declared.user)
        for join in joins:
            self._programs.add_open(counts, *stacks_of(join.layout.layout_id))
        return self._programs.profile(counts)

    def _read(self, name: str) -> None:
        for _, trigger, deltas in self._tables.get(name, ()):
            try:
                reading = trigger.read()
            except OSError as error:  # the event was deleted: what was read stays
                log.debug("the stacks of %s cannot be read: %s", name, error)
                continue
            if reading is not None:
                deltas.take(reading)
