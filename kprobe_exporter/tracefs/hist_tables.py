"""Hist triggers, by which the kernel counts or aggregates: attached to an event, read as tables, detached."""

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.hist import HistReading, HistTable
from kprobe_exporter.model.stacks import STACK_KEYS
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.refusal import why
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

HEADER = re.compile(
    rb"\n*# event histogram\n#\n# trigger info: "
    rb"hist:keys=([^:\s]+):vals=([^:\s]+)(?::\S*)?(?: if ([^\n]*))? \[\w+\]\n#\n\n"
)
TOTALS = re.compile(rb"\nTotals:\n    Hits: (\d{1,20})\n    Entries: \d+\n    Dropped: (\d{1,20})\n")

NAME = rb"(?s:(.{15}))(?: {20}| {35})"
"""A thread's name: at most 15 arbitrary bytes, in a column of 50 bytes on 6.1 and 6.12; 35 bytes are accepted
as well. It is found by its position, as it may contain what looks like the end of a row or of the table."""
POWER = rb"~ 2\^(\d{1,2}) *"
BUCKET = rb"~ (\d{1,20})-\d{1,20} *"
NUMBER = rb" *(\d{1,20})"
FRAMES = rb"\n((?: {9}\S[^\n]*\n)*)"
"""A stack: a line for each function, innermost first (hist_trigger_stacktrace_print())."""

CPU_KEYS = ("common_cpu", "cpu")
"""Keys of the trigger that counts hits. Any would do, as the total counts all. It is ``cpu`` before 5.13."""

THREAD_NAMES = ("comm", "COMM")
"""Keys that are a thread's name."""

TWICE = re.compile(f"({'|'.join((*CPU_KEYS, *STACK_KEYS))})\\1")
"""So 7.2 spells common_cpu and common_stacktrace in its headers, not in the rows (hist_field_print())."""

Spelled: TypeAlias = tuple[str, str, str | None]
"""A trigger's keys, values and condition as event_hist_trigger_print() spells them. To the kernel, triggers
of an event that are spelled alike are the same."""


class Shown(NamedTuple):
    """One trigger's table in a ``hist`` file, and the trigger as the kernel spells it."""

    keys: str
    vals: str
    condition: str | None
    reading: HistReading


def parse_hist(text: bytes) -> list[Shown]:
    """Return the tables of a ``hist`` file, in the order in which their triggers were attached.

    hist_show() of kernel/trace/trace_events_hist.c prints them one after another. The header determines the
    form of the rows below it: a string is read by the width of its column, never by searching. Text in a
    form that our triggers do not produce ends the list.

    A name's trailing blanks cannot be told from the column's padding; rows that differ only in them are
    added up. Parsing costs about 2 µs a row, on top of the kernel's scan and sort of the table.
    """
    shown: list[Shown] = []
    at = 0
    while header := HEADER.match(text, at):
        keys, vals = header[1].decode(errors="replace"), header[2].decode(errors="replace")
        keys = TWICE.sub(r"\1", keys)
        condition = header[3].decode(errors="replace") if header[3] is not None else None
        names = keys.split(",")
        row = re.compile(_row(names, vals.split(",")))
        at = header.end()
        rows: dict[tuple[int | bytes, ...], tuple[int, int]] = {}
        while found := row.match(text, at):
            at = found.end()
            parts = found.groups()
            key = tuple([_value(name, part) for name, part in zip(names, parts, strict=False)])
            hits, *sums = map(int, parts[len(names) :])
            hits_before, sum_before = rows.get(key, (0, 0))
            rows[key] = hits_before + hits, sum_before + _sum(sums)
        totals = TOTALS.match(text, at)
        if totals is None:
            break
        at = totals.end()
        shown.append(Shown(keys, vals, condition, HistReading(int(totals[1]), int(totals[2]), rows)))
    return shown


def _sum(sums: Sequence[int]) -> int:
    """Return the sum of a row's values. The kernel has 64 bits of it, and perhaps that of the upper halves.

    The whole sum is above that of the upper halves, by less than 2^32 for each value.
    """
    if len(sums) < 2:
        return sum(sums)
    low, high = sums[0], sums[1] << 32
    return high + (low - high) % (1 << 64)


def _row(keys: Sequence[str], vals: Sequence[str]) -> bytes:
    """Return the pattern of one row, printed by hist_trigger_print_key() and hist_trigger_entry_print()."""
    shown = b", ".join(_key(name) for name in keys)
    sums = b"  ".join(re.escape(name.encode()) + b":" + NUMBER for name in vals)
    end = rb"\} " if keys[-1] in STACK_KEYS else rb" \} "
    return rb"\{ " + shown + end + sums + rb"\n"


def _key(rendered: str) -> bytes:
    name, _, modifier = rendered.partition(".")
    if name in STACK_KEYS:
        return re.escape(name.encode()) + b":" + FRAMES
    form = POWER if modifier == "log2" else NAME if name in THREAD_NAMES else NUMBER
    if modifier.startswith("buckets="):
        form = BUCKET
    return re.escape(name.encode()) + (b": " if form is not NUMBER else b":") + form


def _value(rendered: str, part: bytes) -> int | bytes:
    if rendered in STACK_KEYS:
        return part
    return part.rstrip(b" ") if rendered.partition(".")[0] in THREAD_NAMES else int(part)


class HitCounter:
    """Our hist trigger on one event; its total is the number of hits, unfiltered.

    Hist triggers see every hit, regardless of the event's filter (kernel/trace/trace_events_hist.c). The
    kernel cannot start or stop a trigger and the recording of its event at once. So hits are counted between
    ``begin``, after recording has started, and ``freeze``, before it stops: what was recorded outside of that
    is an event without a hit, and the aggregator counts a hit for it.

    One thread may read while another attaches, begins and detaches.
    """

    def __init__(self, instance: Instance, event: str, keys: str) -> None:
        self._instance = instance
        self._event = event
        self._spelled: Spelled = (keys, "hitcount", None)
        self._before: int | None = None
        self._final: int | None = None
        self._attached = True

    @classmethod
    def attach(cls, instance: Instance, event: str) -> "HitCounter | None":
        """Attach the trigger to ``events/SYSTEM/EVENT``; None if the kernel has no hist triggers."""
        if not instance.files.exists(f"{instance.path}/{event}/hist"):
            return None
        for keys in CPU_KEYS:
            try:
                instance.write(f"{event}/trigger", f"hist:keys={keys}")
            except FileExistsError:
                pass  # another probe's trigger, which has counted before
            except OSError:
                continue
            counter = cls(instance, event, keys)
            instance.share(share_name(event, counter._spelled))
            return counter
        return None

    def begin(self) -> None:
        """Count from now on, unless it counts already."""
        if self._before is None:
            self._before = self._count(self._shown()) or 0

    def freeze(self) -> None:
        """Count no more: the total stays as it is now."""
        if self._final is None:
            self._final = self.total(self._shown())

    def total(self, shown: Iterable[Shown]) -> int | None:
        """Return the hits since it began, from its event's tables; None if it is not among them."""
        if self._final is not None:
            return self._final
        now = self._count(shown)
        if now is None:
            return None
        return 0 if self._before is None else max(0, now - self._before)

    def _count(self, shown: Iterable[Shown]) -> int | None:
        counts = (one.reading.hits + one.reading.dropped for one in shown if one[:3] == self._spelled)
        return next(counts, None)

    def _shown(self) -> list[Shown]:
        """Return the tables of its event, none if the event no longer exists."""
        try:
            return parse_hist(self._instance.read(f"{self._event}/hist"))
        except OSError:
            return []

    def pop_triggers(self) -> list[tuple[str, Spelled]]:
        """Return its trigger for ``detach``, once; it is not attached any more then."""
        attached, self._attached = self._attached, False
        return [(f"hist:keys={self._spelled[0]}", self._spelled)] if attached else []


class HistTables:
    """The hist triggers of one probe on its event. Only they enable the event, and they do so softly.

    They see every hit that meets their own condition, regardless of the event's filter and the ring buffer.
    Only the threads of set_event_notrace_pid are excluded (trace_event_buffer_reserve(), kernel/trace/
    trace_events.c). One thread may read while another attaches and detaches; they share no state.
    """

    def __init__(self, instance: Instance, event: str, tables: Sequence[HistTable]) -> None:
        self._instance = instance
        self._event = event
        self._tables = tables
        self._attached: list[HistTable] = []
        self._trouble = Trouble()

    def attach(self) -> None:
        """Attach to ``events/SYSTEM/EVENT``. Raises ProbeRefused; ``detach`` then undoes what was done."""
        if not self._instance.files.exists(f"{self._instance.path}/{self._event}/hist"):
            raise ProbeRefused("this kernel was built without CONFIG_HIST_TRIGGERS (there is no hist).")
        for table in self._tables:
            try:
                self._instance.write(f"{self._event}/trigger", table.trigger)
            except FileExistsError:
                raise ProbeRefused("another probe has the same hist trigger on this event.") from None
            except OSError as error:
                error_log = f"{self._instance.path}/error_log"
                reason = why(self._instance.files, error, table.trigger, error_log)
                raise ProbeRefused(f"the hist trigger '{table.trigger}' is refused: {reason}.") from None
            self._instance.share(share_name(self._event, _spelled(table)))
            self._attached.append(table)

    def pop_triggers(self) -> list[tuple[str, Spelled]]:
        """Return its triggers for ``detach``, once; they are not attached any more then."""
        attached, self._attached = self._attached, []
        return [(table.trigger, _spelled(table)) for table in attached]

    def read(self, shown: Sequence[Shown]) -> tuple[HistReading, ...] | None:
        """Return our tables among those of the event, in our order; None unless all are there."""
        readings = {one[:3]: one.reading for one in shown}
        found = [readings.get(_spelled(table)) for table in self._tables]
        whole = tuple(reading for reading in found if reading is not None)
        if len(whole) == len(found):
            return whole
        if self._trouble.failed():
            log.warning("the hist tables of %s cannot be read: its numbers stay as they are", self._event)
        return None


def share_name(event: str, spelled: Spelled | str = "") -> str:
    """Return a trigger's name for ``Instance.share``; a counter and a table may use the same trigger.

    If there is no trigger, return the beginning of the names of all hist triggers of the event.
    """
    return f"{event} {spelled}"


def _spelled(table: HistTable) -> Spelled:
    vals = f"hitcount,{table.vals}" if table.value else "hitcount"
    return ",".join(key.render() for key in table.keys), vals, table.condition


def detach(instance: Instance, event: str, triggers: Collection[tuple[str, Spelled]]) -> None:
    """Remove an event's triggers that no other probe of ours uses, with the fewest waits. Never raises."""
    for _, spelled in triggers:
        instance.release(share_name(event, spelled))
    if triggers and not instance.shares_any(share_name(event)):
        with suppress(OSError):
            instance.files.truncate(f"{instance.path}/{event}/trigger")
        return
    for trigger, spelled in triggers:
        if not instance.shares(share_name(event, spelled)):
            with suppress(OSError):
                instance.write(f"{event}/trigger", f"!{trigger}")
