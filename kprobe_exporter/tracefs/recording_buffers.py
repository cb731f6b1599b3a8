"""The ring buffers of a recording: two instances of which one records and is overwritten, and is not read."""

import errno
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from kprobe_exporter.errors import ProbeRefused, TracefsError
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs.define import define
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.marker import COPY, copy_marks
from kprobe_exporter.tracefs.refusal import cannot_make

log = logging.getLogger(__name__)

ENDS = "ab"
"""The ends of the names of the two instances, and of the eprobes that are theirs."""

NAME = 50
"""Characters of an eprobe's name that remain: with an end and a number 63 at most (MAX_EVENT_NAME_LEN)."""

EVENTS_A_LOOK = 20
"""Events that one look for changes by other processes examines."""

GONE = (errno.ENOENT, errno.ENODEV)
"""Errors of a file in an instance that was removed, or of an event that was deleted."""


class RecordingBuffers:
    """Two instances with the same events: one records, while the other one may be read out.

    A kernel needs CONFIG_TRACER_SNAPSHOT for a snapshot of one instance; every kernel has two of them. The
    name of ``owner``, which makes them ours, is the beginning of their names. ``marks``: they record what
    programs write to their ``trace_marker``, and to that of the top level since Linux 6.15. ``follow``
    and ``close`` belong to the thread that changes probes, ``swap`` to the one that reads. Raises
    TracefsError.

    The kernel records an eprobe in the first instance alone that enables it (enable_trace_eprobe() of
    kernel/trace/trace_eprobe.c). So each of the two has an eprobe of its own in the place of another one,
    whose definition is retired in the end: deleting it would empty buffers.
    """

    def __init__(self, owner: Instance, name: str, buffer_kib: int, *, marks: bool = False) -> None:
        self._files: Tracefs = owner.files
        self._owner, self._name = owner, name
        self._buffer_kib, self._marks = buffer_kib, marks
        self._turning = threading.Lock()  # which of the two records does not change
        self._events: dict[str, str] = {}
        self._shown: dict[tuple[int, str], tuple[bytes, bytes]] = {}  # enable and filter after our writes
        self._examined = 0  # the event at which the next look begins
        self._own: dict[str, tuple[ProbeSpec, list[str]]] = {}
        self._defined: dict[str, ProbeSpec] = {}
        self._made: list[Instance] = []
        self._now = 0  # the index of the one that records
        self._copies = False
        try:
            for end in ENDS:
                made = Instance(self._files, f"{owner.name}.{name}.{end}", None)
                try:
                    self._files.mkdir(made.path)
                except OSError as error:
                    raise TracefsError(cannot_make(made.path, error)) from None
                self._made.append(made)
                self._set_up(made, recording=end == ENDS[0])
            self._copies = marks and self._copy(self._made[0], on=True)
        except BaseException:
            self.close()
            raise

    def _set_up(self, made: Instance, *, recording: bool) -> None:
        made.write("options/overwrite", "1")
        with suppress(FileNotFoundError):
            made.write("options/markers", str(int(self._marks)))
        made.set_up(self._buffer_kib, record_tgid=True, recording=recording, keys="its buffer_size")

    def follow(self, events: Mapping[str, str], eprobes: Mapping[str, ProbeSpec]) -> None:
        """Record these events, ``SYSTEM/EVENT`` with their filters, and no others. Never raises.

        ``eprobes`` are the specifications of those of them that are eprobes.
        """
        changed = {event for event, (spec, _) in self._own.items() if eprobes.get(event) != spec}
        for event in (self._events.keys() - events.keys()) | changed:
            self._write(event, "enable", "0")
            self._own.pop(event, None)
            for index in range(len(ENDS)):
                self._shown.pop((index, event), None)
        for event, spec in eprobes.items():
            if event not in self._own:
                self._own[event] = spec, self._define(spec)
        for event, text in events.items():
            if self._events.get(event) != text or event in changed:
                self._write(event, "filter", text)
                self._write(event, "enable", "1")
                self._note(event)
        self._events = dict(events)

    def repair(self) -> list[str]:
        """Undo what other processes changed; return a line for each change. Never raises.

        A look examines the two instances, and some of their events in turn.
        """
        events = [*self._events]
        if self._examined >= len(events):
            self._examined = 0
        chosen = events[self._examined : self._examined + EVENTS_A_LOOK]
        self._examined += len(chosen)
        found: list[str] = []
        with self._turning:
            for index, made in enumerate(self._made):
                try:
                    found += self._repair_settings(index, made)
                    found += [line for event in chosen for line in self._repair_event(index, event)]
                except (OSError, TracefsError) as error:
                    log.debug("%s: %s", made.path, error)
        return found

    def _repair_settings(self, index: int, made: Instance) -> Iterator[str]:
        records = index == self._now
        try:
            on = made.read("tracing_on").strip() == b"1"
        except OSError as error:
            if error.errno not in GONE or not self._files.exists("trace_clock"):
                raise  # tracefs itself is gone, or locked down
            self._files.mkdir(made.path)
            self._set_up(made, recording=records)
            if records and self._copies:
                self._copy(made, on=True)
            for event, text in self._events.items():
                self._write_one(index, event, "filter", text)
                self._write_one(index, event, "enable", "1")
                self._note(event)
            yield f"{made.path} was removed"
            return
        if changed := made.settings.changed():
            made.settings.restore(changed)
            yield f"{made.path}: {', '.join(changed)}"
        if on != records:
            made.write("tracing_on", str(int(records)))
            yield f"{made.path}: tracing_on"

    def _repair_event(self, index: int, event: str) -> Iterator[str]:
        kept = self._shown.get((index, event))
        if kept is None or (now := self._state(index, event)) == kept:
            return
        if now is None:
            for each in range(len(ENDS)):
                self._shown.pop((each, event), None)
            if event not in self._own:
                return  # the probe's, which the agent defines again
            self._write(event, "enable", "0")
            spec, _ = self._own[event]
            self._own[event] = spec, self._define(spec)
        self._write(event, "filter", self._events[event])
        self._write(event, "enable", "1")
        self._note(event)
        yield f"{self._made[index].path}: {event}"

    def _note(self, event: str) -> None:
        """Remember the state of an event in both instances as our own."""
        for index in range(len(ENDS)):
            if (state := self._state(index, event)) is not None:
                self._shown[index, event] = state

    def _state(self, index: int, event: str) -> tuple[bytes, bytes] | None:
        """Return what the kernel shows of whether an event is enabled, and of its filter.

        None if it cannot be read.
        """
        made, place = self._made[index], self._places(event)[index]
        with suppress(OSError):
            enabled, only = (made.read(f"events/{place}/{file}") for file in ("enable", "filter"))
            return enabled.strip()[:1], only.strip()
        return None

    def _define(self, spec: ProbeSpec) -> list[str]:
        """Define an eprobe for each instance; return their events, none if the kernel refuses one."""
        try:
            taken = {one.event for one in list_definitions(self._files)}
            made = []
            for end in ENDS:
                own = replace(spec, layout=replace(spec.layout, event=f"{spec.layout.event[:NAME]}_{end}"))
                made.append(define(self._owner, own, taken).name)
                self._defined[made[-1]] = own
        except (OSError, ProbeRefused) as error:
            log.warning("the recording '%s' has no events of %s: %s", self._name, spec.target, error)
            return []
        return [f"{self._owner.group}/{event}" for event in made]

    def own_events(self, made: Instance) -> dict[str, str]:
        """Return which events one of the two instances records in the place of others."""
        index = self._made.index(made)
        return {event: own[index] for event, (_, own) in [*self._own.items()] if own}

    def swap(self) -> Instance:
        """Let the other instance record, and return the one that did. Raises OSError.

        For some microseconds both record, so that no event is lost.
        """
        with self._turning:
            before, after = self._made[self._now], self._made[1 - self._now]
            after.write("tracing_on", "1")
            if self._copies:
                self._copy(after, on=True)
                self._copy(before, on=False)
            before.write("tracing_on", "0")
            self._now = 1 - self._now
            return before

    def close(self) -> None:
        """Remove both. Never raises: the owner's removal removes one that is still read."""
        for made in self._made:
            with suppress(OSError):
                self._copy(made, on=False)
            with suppress(OSError):
                made.write("tracing_on", "0")
            with suppress(OSError):
                self._files.rmdir(made.path)
        self._owner.retired |= self._defined

    def _copy(self, made: Instance, *, on: bool) -> bool:
        copies = copy_marks(self._files, made.path, on=on)
        made.settings.written(COPY)
        return copies

    def _places(self, event: str) -> list[str]:
        """Return the event of each instance that stands for this one."""
        _, own = self._own.get(event, (None, []))
        return own or [event] * len(ENDS)

    def _write(self, event: str, file: str, text: str) -> None:
        for index in range(len(ENDS)):
            self._write_one(index, event, file, text)

    def _write_one(self, index: int, event: str, file: str, text: str) -> None:
        made, place = self._made[index], self._places(event)[index]
        try:
            made.write(f"events/{place}/{file}", text)
        except OSError as error:
            log.debug("%s/events/%s/%s: %s", made.path, place, file, error)
