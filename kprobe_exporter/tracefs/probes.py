"""Installs one probe, enables it, and removes it again."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from kprobe_exporter.errors import ProbeRefused, sentence
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs.define import define, meanings_for
from kprobe_exporter.tracefs.definitions import delete, list_definitions
from kprobe_exporter.tracefs.hist_tables import HistTables, HitCounter, detach
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kept_settings import ALL_PASS
from kprobe_exporter.tracefs.profile import PROFILED, Counts
from kprobe_exporter.tracefs.refusal import MEANING, why
from kprobe_exporter.tracefs.removal import soft_trigger, soft_trigger_off
from kprobe_exporter.tracefs.stack_tables import StackTrigger

log = logging.getLogger(__name__)

NO_FILTER = "none"
"""The text that the file ``filter`` shows of an event without one (print_event_filter() of
trace_events_filter.c)."""

STACK = "stacktrace"  # The trigger that records kernel stacks (kernel/trace/trace_events_trigger.c)


class Installed:
    """One probe in the kernel, on a definition of ours or on an existing event; it is enabled on demand.

    Not thread-safe. ``remove`` undoes the installation in reverse order and never raises. After ``remove``
    or ``disable``, the probe must be installed anew. ``before`` is what the kernel's profile had already
    counted when a retired definition was reused.
    """

    def __init__(self, instance: Instance, spec: ProbeSpec, event: str, before: Counts | None = None) -> None:
        self.spec = spec
        self.event = event
        self.owned = spec.file is not None
        self.system = instance.group if self.owned else spec.system
        self.layout: Layout = replace(spec.layout, event=event)
        self.hits: HitCounter | None = None
        self.tables: HistTables | None = None
        self.stacks: StackTrigger | None = None
        self._instance = instance
        self._dir = f"events/{self.system}/{event}"
        self._enabled = False
        self._filters = False
        self._records_stacks = False
        self._registration = f"soft {self._dir}"
        self._registered = False
        self._before = before or Counts(0, 0)
        self._used = before is not None  # if so, deleting it would clear the buffer

    @property
    def name(self) -> str:
        """``SYSTEM:EVENT``, which cannot be the name of a configured probe."""
        return f"{self.system}:{self.event}"

    @property
    def hist(self) -> str | None:
        """The file of its hist triggers; None if it has none."""
        return f"{self._instance.path}/{self._dir}/hist" if self.hits or self.tables else None

    @property
    def profiled(self) -> bool:
        """Whether kprobe_profile or uprobe_profile counts its hits."""
        return self.spec.file in PROFILED

    @property
    def counted_by_kernel(self) -> bool:
        """Whether the kernel counts its hits, in a profile or by hist triggers."""
        return self.profiled or self.hits is not None or self.tables_count_hits

    @property
    def tables_count_hits(self) -> bool:
        """Whether its hits are those of its metrics' hist triggers, as no filter keeps any from them.

        A profile counts from the first trigger on, and the others are attached after that one.
        """
        return self.spec.tables_count_hits

    @property
    def counted_softly(self) -> bool:
        """Whether it is only softly enabled: its profile counts, and no event is recorded."""
        return self.spec.plan == "count" and self.profiled

    @property
    def records(self) -> bool:
        """Whether its events are now written to the ring buffer."""
        return self._enabled and self.spec.plan == "events"

    def since(self, count: Counts | None) -> Counts | None:
        """Return the part of its profile's counts that came since it was installed."""
        if count is None:
            return None
        misses = None if count.misses is None else count.misses - (self._before.misses or 0)
        return Counts(count.hits - self._before.hits, misses)

    def set_filter(self) -> None:
        """Write the event's filter, for a tracepoint's own event with that of other probes. Raises
        ProbeRefused."""
        text = self.spec.kernel_filter
        if not self.owned and self.spec.plan == "events":
            text = self._instance.filters.add(self._dir, text)
            self._filters = True
        if text is None and self._used:
            text = ALL_PASS  # the filter of the retired definition
        if text is not None:
            logs = f"{self._instance.path}/error_log", "error_log"
            self._write("filter", text, f"the filter '{text}' is refused", *logs)
        if self._instance.guard is not None and self.spec.plan == "events":
            self._write("filter", self._guarded(text), "its filter is refused")

    def shown_enabled(self) -> bytes:
        """Return what the kernel shows of whether it is enabled. Raises OSError."""
        return self._instance.read(f"{self._dir}/enable").strip()

    def restore_filter(self) -> bool:
        """Write the event's filter again if another process has changed it; return whether it has.

        Raises OSError.
        """
        shown = self._instance.read(f"{self._dir}/filter").decode(errors="replace").strip()
        if not self.filter_differs(shown):
            return False
        self._instance.write(f"{self._dir}/filter", self._own_filter or ALL_PASS)
        return True

    def filter_differs(self, shown: str) -> bool:
        """Return whether the filter that the kernel shows, NO_FILTER for none, is not the event's own."""
        ours = self._own_filter
        return shown != (NO_FILTER if ours in (None, ALL_PASS) else ours)

    @property
    def _own_filter(self) -> str | None:
        return self.spec.kernel_filter if self.owned else self._instance.filters.text(self._dir)

    def _guarded(self, text: str | None) -> str:
        """Return a filter that the instance's guard has to pass as well."""
        guard = self._instance.guard
        return " && ".join(f"({each})" for each in (text, guard) if each not in (None, ALL_PASS))

    def take_stacks(self) -> None:
        """Make the kernel record its stack after each event that passes the filter. Raises ProbeRefused.

        The option stacktrace would do so for every event of the instance; a trigger does so for one.
        """
        if not self.spec.stack:
            return
        text = self._guarded(self.spec.kernel_filter)
        trigger = STACK + (f" if {text}" if text else "")
        self._used = True  # a trigger enables its event softly
        self._records_stacks = True
        self._write("trigger", trigger, "it gives no stacks", f"{self._instance.path}/error_log")

    def aggregate(self) -> None:
        """Attach the hist triggers of the plan ``kernel``, which enable it softly. Raises ProbeRefused."""
        if self.spec.tables:
            self._used = True
            self.tables = HistTables(self._instance, self._dir, self.spec.tables)
            self.tables.attach()

    def count_stacks(self) -> None:
        """Attach the hist trigger that counts its stacks, if it is planned so. Raises ProbeRefused."""
        if self.spec.stack_table is not None:
            self._used = True
            self.stacks = StackTrigger(self._instance, self._dir, self.spec.stack_table)
            self.stacks.attach()

    def count_hits(self) -> None:
        """Count hits with a hist trigger if nothing else does. Raises ProbeRefused if the plan requires it.

        Events that are recorded are counted once that has started; see `enable`.
        """
        if self.profiled or self.tables_count_hits:
            return
        self._used = True
        self.hits = HitCounter.attach(self._instance, self._dir)
        if self.spec.plan != "events":
            if self.hits is None:
                raise ProbeRefused("the kernel refuses a hist trigger on it, by which it would be counted.")
            self.hits.begin()

    def register(self) -> None:
        """Enable it softly: its records come before those of its tracepoint's events that are enabled later.

        A tracepoint calls its events in the order in which they were enabled, also softly by a hist trigger
        (func_add() of kernel/tracepoint.c). Raises ProbeRefused.
        """
        self._used = True
        if not self._instance.shares(self._registration):
            self._write("trigger", soft_trigger(self.system, self.event), "it cannot be enabled softly")
        self._instance.share(self._registration)
        self._registered = True

    def enable(self) -> None:
        """Start recording, or only counting. Raises ProbeRefused."""
        if self.spec.plan != "events" and not self.counted_softly:
            return  # its hist triggers have counted since they were attached
        self._used = True
        what, meanings = "it cannot be enabled", meanings_for(self.spec)
        if self.counted_softly:
            try:
                self._write("trigger", soft_trigger(self.system, self.event), what, meanings=meanings)
            except ProbeRefused:
                # A trigger says ENOENT for every failure (kernel/trace/trace_events_trigger.c): the file
                # `enable` gives the reason.
                self._write("enable", "1", what, meanings=meanings)
                self._undo("enable", "0")
                raise
        else:
            self._write("enable", "1", what, meanings=meanings)
        if not self._enabled:
            self._instance.share(self._dir)
        self._enabled = True
        if self.hits is not None:
            self.hits.begin()

    def pause(self) -> None:
        """Stop recording; its counts can still be read. Never raises: an event that no longer exists records
        nothing. An event that another probe of ours also reads stays enabled."""
        if self.hits is not None:
            self.hits.freeze()
        if self._enabled:
            self._enabled = False
            self._instance.release(self._dir)
        was_registered, self._registered = self._registered, False
        if was_registered:
            self._instance.release(self._registration)
        if self.counted_softly or (was_registered and not self._instance.shares(self._registration)):
            self._undo("trigger", soft_trigger_off(self.system, self.event))
        if not self._instance.shares(self._dir):
            self._undo("enable", "0")
        if self._records_stacks:  # last, because the kernel waits: events would come without their stacks
            self._records_stacks = False
            self._undo("trigger", f"!{STACK}")

    @property
    def recorded_for_others(self) -> bool:
        """Whether its event is recorded, for another probe of ours alone."""
        return not self._enabled and self._instance.shares(self._dir)

    def disable(self) -> None:
        """Stop recording and counting permanently. Never raises."""
        with_triggers = [one for one in (self.tables, self.stacks, self.hits) if one is not None]
        detach(
            self._instance, self._dir, [trigger for one in with_triggers for trigger in one.pop_triggers()]
        )
        self.pause()
        if self._filters:
            self._filters = False
            text = self._instance.filters.remove(self._dir, self.spec.kernel_filter)
            if text is not None:
                self._undo("filter", text)

    def _write(
        self, file: str, text: str, refusal: str, *logs: str, meanings: Mapping[int, str] = MEANING
    ) -> None:
        """Write to a file of the event. Raises ProbeRefused: ``refusal``, and why."""
        try:
            self._instance.write(f"{self._dir}/{file}", text)
        except OSError as error:
            reason = why(self._instance.files, error, text, *logs, meanings=meanings)
            raise ProbeRefused(sentence(f"{refusal}: {reason}")) from None

    def _undo(self, file: str, text: str) -> None:
        try:
            self._instance.write(f"{self._dir}/{file}", text)
        except OSError as error:
            log.debug("%s of %s/%s: %s", file, self.system, self.event, error)

    def remove(self) -> bool:
        """Disable it and delete its definition. Return True if its name is free again.

        Deleting a dynamic event clears the unread buffer of every instance in which it was ever enabled, even
        softly: event_remove() marks the instance, dyn_event_release() resets the marked ones
        (kernel/trace/trace_events.c, trace_dynevent.c). So while the instance is recording, a definition that
        was ever enabled is retired instead, and then costs about 10 KB of kernel memory. So is one that
        cannot be deleted now.
        """
        self.disable()
        if not self.owned:
            return False
        wipes = self._used and self._instance.recording
        if not wipes and delete(self._instance.files, self.system, self.event) is None:
            return True
        self._instance.retired[self.event] = self.spec
        return False


def install(instance: Instance, spec: ProbeSpec, taken: set[str]) -> Installed:
    """Install the probe under an event name that is not in ``taken``, which is kept up to date.

    kprobe_profile and the text of trace_pipe print an event without its group, so its name has to be
    unique among all groups. Raises ProbeRefused, and then leaves nothing of the probe behind.
    """
    if spec.file:
        event, before = define(instance, spec, taken)
        probe = Installed(instance, spec, event, before)
    elif instance.files.exists(f"{instance.path}/events/{spec.system}/{spec.event}/enable"):
        probe = Installed(instance, spec, spec.event)
    else:
        raise ProbeRefused(f"this kernel has no tracepoint {spec.system}:{spec.event}.")
    try:
        probe.set_filter()
        probe.take_stacks()
        if spec.role in ("whole", "begin"):
            probe.count_hits()  # before the tables of a filtered probe, so that no event is without a hit
        probe.aggregate()
        probe.count_stacks()
    except BaseException:
        probe.remove()
        raise
    return probe


def names_in_use(instance: Instance) -> set[str]:
    """Return the event names of all dynamic events, including those of other programs."""
    return {defined.event for defined in list_definitions(instance.files)}
