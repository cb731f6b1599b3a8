"""Hist triggers that aggregate in the kernel: attached to an event, read as tables, detached."""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.hist import HistReading, HistTable
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
NUMBER = rb" *(\d{1,20})"


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
    return list(_tables(text))


def _tables(text: bytes) -> Iterator[Shown]:
    at = 0
    while header := HEADER.match(text, at):
        keys, vals = header[1].decode(errors="replace"), header[2].decode(errors="replace")
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
            return
        at = totals.end()
        yield Shown(keys, vals, condition, HistReading(int(totals[1]), int(totals[2]), rows))


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
    return rb"\{ " + shown + rb" \} " + sums + rb"\n"


def _key(rendered: str) -> bytes:
    name, _, modifier = rendered.partition(".")
    form = POWER if modifier == "log2" else NAME if name == "comm" else NUMBER
    return re.escape(name.encode()) + (b": " if form is not NUMBER else b":") + form


def _value(rendered: str, part: bytes) -> int | bytes:
    return part.rstrip(b" ") if rendered.partition(".")[0] == "comm" else int(part)


class HistTables:
    """The hist triggers of one probe on its event. Only they enable the event, and they do so softly.

    They see every hit that meets their own condition, regardless of the event's filter, the instance's
    set_event_notrace_pid and its ring buffer. One thread may read while another attaches and detaches;
    they share no state.
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
                log = (f"{self._instance.path}/error_log",)
                reason = why(self._instance.files, error, table.trigger, log)
                raise ProbeRefused(f"the hist trigger '{table.trigger}' is refused: {reason}.") from None
            self._instance.share(share_name(self._event, *_spelled(table)))
            self._attached.append(table)

    def detach(self) -> None:
        """Remove the triggers that no other probe uses. A trigger that no longer exists is no error."""
        for table in self._attached:
            shared = share_name(self._event, *_spelled(table))
            self._instance.release(shared)
            if self._instance.shares(shared):
                continue
            try:
                self._instance.write(f"{self._event}/trigger", f"!{table.trigger}")
            except OSError:
                continue
        self._attached = []

    def read(self, shown: Sequence[Shown]) -> tuple[HistReading, ...] | None:
        """Return our tables among those of the event, in our order; None unless all are there."""
        readings = {(one.keys, one.vals, one.condition): one.reading for one in shown}
        found = [readings.get(_spelled(table)) for table in self._tables]
        whole = tuple(reading for reading in found if reading is not None)
        if len(whole) == len(found):
            return whole
        if self._trouble.failed():
            log.warning("the hist tables of %s cannot be read: its numbers stay as they are", self._event)
        return None


def share_name(event: str, keys: str, vals: str, condition: str | None) -> str:
    """Return a trigger's name for ``share``: to the kernel, triggers that are spelled alike are the same."""
    return f"{event} {keys}:{vals} if {condition}"


def _spelled(table: HistTable) -> tuple[str, str, str | None]:
    """Return a trigger's keys, values and condition as event_hist_trigger_print() spells them."""
    vals = f"hitcount,{table.vals}" if table.value else "hitcount"
    return ",".join(key.render() for key in table.keys), vals, table.condition
