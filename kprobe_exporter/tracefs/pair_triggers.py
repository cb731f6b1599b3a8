"""Joins two events in the kernel: a synthetic event, and the hist triggers that make and count it."""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.hist import HistReading
from kprobe_exporter.model.pairs import DURATION, LESS, OPEN_ROWS, KernelPair, PairLoss
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs.definitions import SYNTHETIC, delete_soon, synthetic_prefix
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed
from kprobe_exporter.tracefs.profile import Counts
from kprobe_exporter.tracefs.refusal import why

log = logging.getLogger(__name__)

READ_SHARE = 100
"""A table of open calls is read again after so many times the time that it took."""

SHOWN = "show_event_triggers"
"""In an instance, the triggers of all events (since Linux 7.0)."""

TOTALS = re.compile(rb"\nTotals:\n    Hits: (\d{1,20})\n    Entries: (\d{1,20})\n    Dropped: (\d{1,20})\n")


def pairs_of(instance: Instance) -> Instance:
    """Return the instance in which the kernel joins events. Raises ProbeRefused."""
    try:
        return instance.open_pairs()
    except OSError as error:
        raise ProbeRefused(f"the instance for pairs cannot be made: {error.strerror}.") from None


class PairTriggers:
    """The triggers of one pair. The first event's keeps its time and fields, and the last event's takes them.

    Both are in an instance of their own. Variables have the number of the pair in their names, because names
    must differ on one event. One thread may read while another attaches and detaches.
    """

    def __init__(self, instance: Instance, pair: KernelPair, begin: Installed, end: Installed) -> None:
        self.instance = pairs_of(instance)
        self._files = instance.files
        self._pair = pair
        self._begin, self._end = begin, end
        instance.pairs_made += 1
        self._number = instance.pairs_made
        self.event = f"{synthetic_prefix(instance.group)}{self._number}"
        self._attached: list[tuple[Installed, str]] = []
        self._read_after = 0.0
        self._opened = 0, 0, 0  # hits, rows and dropped events of the table of open calls
        self._before = 0  # the hits of that table for whose ends nothing looked yet

    def define(self) -> ProbeSpec:
        """Define the synthetic event; return the description of it. Raises ProbeRefused."""
        fields = [f"u64 {name}" for name in self._own]
        fields += [
            f"{one.type} {one.name}" + ("[]" if one.type == "char" else "") for one in self._pair.fields
        ]
        self._write("synthetic_events", f"{self.event} {'; '.join(fields)}", "error_log")
        return replace(self._pair.sums, event=self.event)

    def attach(self) -> None:
        """Join from now on. Raises ProbeRefused; ``detach`` then undoes what was done."""
        for part, trigger in ((self._begin, self._opening), (self._end, self._closing)):
            path = f"{self.instance.path}/events/{part.system}/{part.event}/trigger"
            self._write(path, trigger, f"{self.instance.path}/error_log")
            self._attached.append((part, trigger))
        with suppress(OSError):
            self.read_open()
        self._before = self._opened[0]

    def detach(self) -> None:
        """Join no more. Never raises. The last event's trigger goes first, because it uses the other one."""
        while self._attached:
            part, trigger = self._attached.pop()
            with suppress(OSError):
                self.instance.write(f"events/{part.system}/{part.event}/trigger", f"!{trigger}")

    def are_whole(self) -> bool:
        """Return whether the kernel shows both triggers, which another process may have removed.

        Raises OSError.
        """
        try:
            text = self.instance.read(SHOWN)
        except FileNotFoundError:
            text = b"".join(
                self.instance.read(f"events/{part.system}/{part.event}/trigger")
                for part in (self._begin, self._end)
            )
        return self._variable in text and b":d%d=" % self._number in text

    def undefine(self) -> None:
        """Delete the synthetic event, whose triggers are off. Never raises."""
        if (reason := delete_soon(self._files, SYNTHETIC, self.event)) is not None:
            log.debug("%s/%s could not be deleted: %s", SYNTHETIC, self.event, reason)

    def read_open(self) -> None:
        """Read the totals of the table of open calls, if that does not take too much time. Raises OSError.

        The kernel prints all rows of it.
        """
        begun = time.monotonic()
        if begun < self._read_after:
            return
        text = self.instance.read(f"events/{self._begin.system}/{self._begin.event}/hist")
        for table in text.split(b"# event histogram\n"):
            found = TOTALS.search(table)
            if found and self._variable in table:
                self._opened = int(found[1]), int(found[2]), int(found[3])
        self._read_after = time.monotonic() + READ_SHARE * (time.monotonic() - begun)

    @property
    def is_full(self) -> bool:
        """Whether the table of open calls had no row for one of them."""
        return self._opened[2] > 0

    def loss(self, joined: HistReading, counts: Mapping[str, Counts]) -> PairLoss:
        """Return what was not joined so far.

        ``joined`` counts all that was joined, and ``counts`` are the hits in the kernel's profile, which were
        read before it.
        """
        hits, rows, dropped = self._opened
        together = joined.hits + joined.dropped
        if not self._pair.each_end:
            return PairLoss(max(0, hits - self._before - together - rows), dropped)
        ended = self._end.since(counts.get(self._end.event))
        return PairLoss(max(0, (ended.hits if ended else 0) - together - dropped), dropped)

    @property
    def _own(self) -> Sequence[str]:
        return (DURATION, LESS) if self._pair.less else (DURATION,)

    @property
    def _variable(self) -> bytes:
        """The text by which the table of open calls is told from others on the event."""
        return f":t{self._number}=common_timestamp".encode()

    @property
    def _opening(self) -> str:
        """The trigger of the first event."""
        number, pair = self._number, self._pair
        taken = [f"t{number}=common_timestamp"]
        taken += [f"b{number}_{at}={field.source}" for at, field in enumerate(pair.fields) if field.first]
        return self._trigger(pair.begin_key, taken, pair.conditions[0])

    @property
    def _closing(self) -> str:
        """The trigger of the last event."""
        number, pair = self._number, self._pair
        taken = [f"d{number}=common_timestamp-$t{number}"]
        given = [f"$d{number}"]
        if pair.less:
            taken.append(f"l{number}=common_timestamp-$t{number}-1")
            given.append(f"$l{number}")
        for at, field in enumerate(pair.fields):
            name = f"{'b' if field.first else 'e'}{number}_{at}"
            given.append(f"${name}")
            if not field.first:
                taken.append(f"{name}={field.source}")
        system, event = self._begin.system, self._begin.event
        action = f":onmatch({system}.{event}).trace({self.event},{','.join(given)})"
        return self._trigger(pair.end_key, taken, pair.conditions[1], action)

    def _trigger(self, key: str, taken: list[str], condition: str | None, action: str = "") -> str:
        only = f" if {condition}" if condition else ""
        return f"hist:keys={key}:{','.join(taken)}:size={OPEN_ROWS}:clock=mono{action}{only}"

    def _write(self, path: str, text: str, error_log: str) -> None:
        try:
            self._files.write(path, text)
        except OSError as error:
            reason = why(self._files, error, text, error_log)
            raise ProbeRefused(
                f"the kernel does not join its events: '{text}' is refused: {reason}."
            ) from None
