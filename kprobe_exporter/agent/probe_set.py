"""The current probes, and how some of them are replaced while the others go on."""

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from kprobe_exporter.agent.audit import SwitchLosses
from kprobe_exporter.agent.installer import Installer
from kprobe_exporter.agent.pipeline import Pipeline
from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.agent.probe_stacks import ProbeStacks
from kprobe_exporter.agent.thread_events import Identities
from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.records import Batch, Loss
from kprobe_exporter.model.snapshot import KernelCounts
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import JoinedSpec
from kprobe_exporter.probing.attach import Attached, is_of_time
from kprobe_exporter.source.reader import Reader
from kprobe_exporter.tracefs.definitions import delete
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.pair_triggers import PairTriggers
from kprobe_exporter.tracefs.poller import Poller, counted_by_trigger, read_counts
from kprobe_exporter.tracefs.probes import Installed
from kprobe_exporter.tracefs.profile import PROFILED, profile_counts

log = logging.getLogger(__name__)

LAST_TIME = 5.0
"""Seconds that a change waits for the last events and counts of the probes that it removes."""

MOST_RETIRED, KEPT = 256, 128
"""Above MOST_RETIRED definitions, all but the KEPT that were retired last are deleted: one pruning thus
serves many new definitions."""


_IN_ROOT = re.compile(r"/\S*?/[0-9]+(?=/root[:/])")
"""The directory of a process at the beginning of a path. The host's /proc may be mounted at any place."""


class _Now(NamedTuple):
    """All current probes and their events, and the aggregator's epoch: replaced as a whole."""

    probes: tuple[ProbeState, ...] = ()
    parts: tuple[Installed, ...] = ()
    pairs: Mapping[int, PairTriggers] = MappingProxyType({})
    epoch: int = 0


@dataclass(eq=False)
class ProbeSet:
    """All probes of the agent. One thread at a time changes them; any may use ``probes`` and ``poller``.

    A change makes system calls, 50 ms and more per probe. It holds no lock that the reader, the poller or
    scrapes take, so these go on. Probes that stay are not touched. Probes that go stop recording; then their
    last events and counts are read, and only then are they forgotten, so that their successors continue their
    numbers. Firings in between, for about 0.1 s, are not recorded. They do not count as hits either, except
    those that the kernel counts while it switches the old probe off: for single events these count as lost.
    """

    _instance: Instance
    _installer: Installer
    _pipeline: Pipeline
    _source: Reader
    _aggregator: Aggregator
    _identities: Identities
    _stacks: ProbeStacks

    def __post_init__(self) -> None:
        self.poller = Poller(self._counts, self._aggregator.update_kernel)
        self._switch_losses = SwitchLosses(self._aggregator)
        self._now = _Now()

    @property
    def probes(self) -> tuple[ProbeState, ...]:
        """The current probes."""
        return self._now.probes

    def replace(self, probes: tuple[ProbeState, ...], reset: Collection[str] = ()) -> None:
        """Make these the only probes. The metrics ``reset`` begin at 0.

        Current probes among them stay as they are. New probes in the state ``down`` are installed and
        enabled; their ``older`` parts go on. After any exception the agent cannot go on.
        """
        staying = set(probes) & set(self.probes)
        self._dismiss(probes)
        self._aggregator.redeclare([probe.plan.metrics for probe in probes], reset)
        self._stacks.redeclare(probe.plan.probe for probe in probes)
        coming = [probe for probe in probes if probe not in staying and probe.state == "down"]
        self._installer.install(coming, [probe for probe in probes if probe in staying])
        for probe in coming:
            self._attach(probe)
        self._switch_losses.begin(probe.attached for probe in coming if probe.attached is not None)
        self._pipeline.switch(self._source.call, probes)
        self._publish(probes)
        self._follow()
        self._instance.recording = True
        for probe in coming:
            if (attached := probe.attached) is None or self._installer.stopping():
                continue
            if not self._installer.enable(probe):
                self._stacks.detach(attached)
                if probe.older:
                    self._aggregator.detach_one(attached.layout, 0)
                else:
                    self._aggregator.detach(attached.layout)
        if any(probe.attached is not None and is_of_time(probe.attached) for probe in coming):
            self._pipeline.watch_threads(self._source.call, anew=True)
        self._publish(probes)

    def prune(self) -> bool:
        """Delete retired definitions, if there are too many, or where a container has ended.

        Return whether that emptied the ring buffers.
        """
        with suppress(OSError):
            if (wiped := prune(self._instance, self._now.parts, self._read_out)) is not None:
                lost, loss = wiped
                log.info("deleted retired definitions; at least %d events were lost by it", lost)
                self._aggregator.lose("wiped", lost)
                self._source.call(lambda: self._pipeline.consume(Batch(losses=[loss])))
                return True
        return False

    def interrupted(self, name: str = "") -> None:
        """Drop the open calls of this probe, or of all: they may have ended while recording was stopped."""
        probes = [probe for probe in self.probes if not name or probe.name == name]
        attached = [one for probe in probes for one in probe.attachments]
        joins = [one.joined for one in attached if one.joined is not None]
        self._source.drain(LAST_TIME)
        self._source.call(lambda: self._pipeline.reset(joins, threads=not name))

    def follow_again(self, disabled: Collection[str]) -> None:
        """Enable the agent's own tracepoints again if another process disabled one of them."""
        for own in self._identities.tracepoints:
            if any(part.name in disabled for part in own.parts):
                own.enabled = False
        self._follow()

    @property
    def own(self) -> tuple[Installed, ...]:
        """The events that are recorded for the agent itself."""
        return tuple(part for own in self._identities.tracepoints if own.enabled for part in own.parts)

    def off(self) -> None:
        """Stop all recording at the end. Never raises. `Instance.close` removes the probes."""
        self._instance.stop_recording()

    def _dismiss(self, probes: Sequence[ProbeState]) -> None:
        """Stop what none of these probes needs, take its last events and counts, and forget it."""
        kept = {id(attached): attached.spec.probe for probe in probes for attached in probe.attachments}
        current = [attached for probe in self.probes for attached in probe.attachments]
        removed = [attached for attached in current if id(attached) not in kept]
        if not removed:
            return
        going_on = set(kept.values())  # the probes of which another attachment stays
        whole = [attached for attached in removed if attached.spec.probe not in going_on]
        self.poller.refresh(LAST_TIME, fresh=True)
        before = self._aggregator.hits()
        self._source.drain(LAST_TIME)
        self._switch_losses.look(whole, before)
        for attached in removed:
            attached.pause()
        self._read_out()
        if any(part.recorded_for_others for attached in removed for part in attached.parts):
            # As on 5.10, where probes on a tracepoint share its event. From here on it is that of the others.
            self._pipeline.switch(self._source.call, probes)
            self._source.drain(LAST_TIME)
        self._switch_losses.end(whole, before)
        for attached in removed:
            if attached.spec.probe in going_on:
                self._aggregator.detach_one(attached.layout, self._hits(attached))
            else:
                self._aggregator.detach(attached.layout)
            self._stacks.detach(attached)
            attached.remove()

    def _hits(self, attached: Attached) -> int | None:
        """Return what the kernel has counted of this attachment, None if that cannot be read."""
        with suppress(OSError):
            return read_counts(self._instance, attached.parts).hits.get(attached.spec.probe)
        return None

    def _read_out(self) -> None:
        in_time = self._source.drain(LAST_TIME), self.poller.refresh(LAST_TIME, fresh=True)
        if not all(in_time):
            log.debug("the last events or counts did not come within %s s", LAST_TIME)

    def _attach(self, probe: ProbeState) -> None:
        if (attached := probe.attached) is None:
            return
        self._aggregator.attach(
            attached.layout,
            count_hits=not attached.counted_by_kernel,
            residual_filter=attached.residual_filter,
            tables=attached.tables,
            joined=isinstance(attached.spec, JoinedSpec),
        )
        self._stacks.attach(attached)
        note = self._identities.note(attached.layout, probe.plan.metrics.attributes)
        if probe.plan.probe.export is not None and note is not None:
            self._aggregator.watch(attached.layout.layout_id, note)

    def _follow(self) -> None:
        for own in self._identities.tracepoints:
            if own.enabled or not own.parts:
                continue
            try:
                own.enable()
            except ProbeRefused as error:
                log.warning("%s: %s", own.without, error)
            self._source.call(own.begin)

    def _publish(self, probes: tuple[ProbeState, ...]) -> None:
        attached = [one for probe in probes for one in probe.attachments]
        parts = tuple(part for one in attached for part in one.parts)
        pairs = {one.layout.layout_id: one.pair for one in attached if one.pair is not None}
        self._now = _Now(probes, parts, pairs, self._aggregator.epoch)

    def _counts(self) -> KernelCounts:
        """Read the kernel's counts, in the poller's thread."""
        now = self._now
        recorded = self._aggregator.recorded(counted_by_trigger(now.parts))
        return replace(read_counts(self._instance, now.parts, now.pairs), epoch=now.epoch, recorded=recorded)


def prune(
    instance: Instance, parts: Sequence[Installed], read_out: Callable[[], object]
) -> tuple[int, Loss] | None:
    """Delete the oldest retired definitions if there are too many. Delete all below the root of an ended
    process, since they hold its file system. Return None if there are none of these.

    The same configuration uses its retired definitions again, so they accumulate only if definitions are
    always new. Deleting one wipes the unread ring buffer (see ``Installed.remove``) and takes the kernel
    about 50 ms. So recording is off meanwhile, and the buffer is empty. Firings in that time are hits without
    events. They count as lost, with the reason ``wiped``, if the kernel's profiles count the probe and it has
    no filter.

    ``parts`` are the installed events. ``read_out`` reads the whole buffer and the kernel's counts. Returns a
    lower bound of the lost events, and the interval in which events may have been lost.
    """
    retired = list(instance.retired)
    unneeded = retired[:-KEPT] if len(retired) > MOST_RETIRED else []
    unneeded += [one for one in retired if one not in unneeded and _of_ended(instance.retired[one])]
    if not unneeded:
        return None
    start = time.monotonic_ns()
    instance.write("tracing_on", "0")
    try:
        read_out()
        before = _firings(instance, parts)
        for event in unneeded:
            if (reason := delete(instance.files, instance.group, event)) is None:
                del instance.retired[event]
            else:  # the next pruning tries again
                log.debug("%s/%s could not be deleted: %s", instance.group, event, reason)
        read_out()  # the wipe reset the buffer's own counts
        wiped = max(0, _firings(instance, parts) - before)
    finally:
        instance.write("tracing_on", "1")
    return wiped, Loss(0, start, time.monotonic_ns())


def _of_ended(spec: ProbeSpec) -> bool:
    """Return whether a definition is for a file below the root of a process that has ended."""
    found = _IN_ROOT.match(spec.body)
    return found is not None and not Path(found[0]).exists()


def _firings(instance: Instance, parts: Sequence[Installed]) -> int:
    """Return the hits of all events that would be in the buffer, both halves of calls and pairs."""
    recorded = [part for part in parts if part.profiled and part.records and part.spec.kernel_filter is None]
    total = 0
    for file in PROFILED:
        events = {part.event for part in recorded if part.spec.file == file}
        with suppress(OSError):
            counts = profile_counts(instance.files, instance.group, file) if events else {}
            total += sum(count.hits for event, count in counts.items() if event in events)
    return total
