"""Parses pages of trace_pipe_raw in plain Python; tests hold the engine to it.

A page is a header and records. A record is a word of length and time, and then the event (kernel/trace/
ring_buffer.c, include/linux/ring_buffer.h; tools/lib/traceevent/kbuffer-parse.c reads the same).
"""

import errno
import os
import struct
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from kprobe_exporter.model.aggregation import Recipe, RecordFilter
from kprobe_exporter.model.joins import Joins
from kprobe_exporter.model.record_layout import Geometry, Shape, StackLayout, StackLayouts
from kprobe_exporter.model.records import OF_THREADS, Batch, Loss, Record
from kprobe_exporter.model.stacks import StackTally
from kprobe_exporter.source.pages import NEVER_ONLINE, UNKNOWN, frame, loss
from kprobe_exporter.source.values import Buffer, Names, Read, reader

PADDING, TIME_EXTEND, TIME_STAMP = 29, 30, 31
LONG = 0
"""The record's length is in the next word."""

MISSED, COUNTED = 1 << 31, 1 << 30
"""Flags in a page's commit: events before it were lost; their number stands behind the last record."""

LENGTH = COUNTED - 1
"""The bits of a page's commit that are the length of its records."""

STAMP_BITS = 59
"""Bits of an absolute time; the upper 5 are those of the last time (rb_fix_abs_ts)."""

WORD = struct.Struct("=I")
LONG_WORD = struct.Struct("=Q")
HEAD = struct.Struct("=HBBi")
"""The head of an event: its id, flags, preemption count, thread id."""

HARDIRQ, SOFTIRQ, NMI = 0x08, 0x10, 0x40
"""Flags of an event (enum trace_flag_type, include/linux/trace_events.h)."""

LITTLE = sys.byteorder == "little"
NO_STACKS = StackLayouts()

ULONG_MAX = (1 << 64) - 1
"""Ends a stack that is shorter than its record."""


class PageParser:
    """Turns pages into batches of records. ``take`` returns what arrived since its last call.

    It neither adds up nor joins records: ``recipes`` and ``joins`` are ignored, and records delivered.
    Records of the agent's own threads (`set_own_threads`) are discarded and counted in ``Batch.own``, except
    those of layouts in ``of_all_threads``.

    A damaged page is abandoned where it makes no sense, and counted as unparsed once. Every access is checked
    against the length that the page states, and that length against the page's size. Costs about 1 µs a
    record and 0.5 µs a field. Not thread-safe.

    Missing events of a CPU, which the kernel overwrote or a damaged page held, are a loss from the last event
    that was read of that CPU, or 0 if none, to the next one. It ends at UNKNOWN if ``take`` comes first.
    """

    compiled = False

    def __init__(
        self,
        geometry: Geometry,
        shapes: Iterable[Shape],
        names: Names,
        stacks: StackLayouts = NO_STACKS,
        tgid: bool = False,
        recipes: Mapping[int, Recipe] | None = None,
        filters: Mapping[int, RecordFilter] | None = None,
        joins: Joins | None = None,
        of_all_threads: Collection[int] = (),
    ) -> None:
        self._geometry = geometry
        # The half of the commit that holds the length and the flags.
        self._commit = geometry.commit if LITTLE else geometry.commit + geometry.commit_size - 4
        self._names = names
        self._stacks = stacks
        self._wants_tgid = tgid
        self._filters = filters or {}
        self._of_all_threads = of_all_threads
        self._own_threads: Collection[int] = ()
        self._shapes: defaultdict[int, list[tuple[Shape, list[Read]]]] = defaultdict(list)
        for shape in shapes:
            readers = [reader(field, names) for field in shape.fields]
            self._shapes[shape.id].append((shape, readers))
        self._stacked: dict[int, tuple[int, list[Record]]] = {}
        self._followed: dict[int, tuple[int, list[Record]]] = {}  # those that a program's stack follows
        self._batch = Batch()
        self._last: dict[int, int] = {}
        self._gaps: set[int] = set()
        self.time = 0

    def set_own_threads(self, tids: Collection[int]) -> None:
        """Discard from now on what these threads do; what interrupts do while such a thread runs is kept."""
        self._own_threads = tids

    def feed(self, page: Buffer, cpu: int) -> None:
        """Take in one page that was read from ``cpu``; ``time`` is then that of its last record."""
        try:
            self._walk(page, cpu)
        except (struct.error, IndexError, _DamagedError):
            self._batch.unparsed += 1
            self._gaps.add(cpu)

    def pull(self, fd: int, cpu: int, pages: int) -> int:
        """Read and take in up to ``pages`` of a trace_pipe_raw; return their number.

        Return NEVER_ONLINE if the CPU has no buffer yet. Raises OSError.
        """
        for got in range(pages):
            try:
                page = os.read(fd, self._geometry.page)
            except BlockingIOError:
                return got
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
                return NEVER_ONLINE
            if not page:
                return got
            self.feed(page, cpu)
            if WORD.unpack_from(page, self._commit)[0] & LENGTH < self._geometry.page // 2:
                return got + 1  # it is still being written: hardly anything follows, and in small pieces
        return pages

    def take(self) -> Batch:
        """Return what arrived since the last call."""
        batch, self._batch = self._batch, Batch()
        batch.losses += close_gaps(self._gaps, self._last)
        return batch

    def join(self, batch: Batch | None, until: int | None = None) -> None:
        """Do nothing: halves are delivered as records."""

    def drop(self, layout_id: int) -> None:
        """Do nothing: no half waits here."""

    def open_stacks(self, layout_id: int, now: int) -> tuple[list[StackTally], int]:
        """Return nothing: no half waits here."""
        return [], 0

    queued, has_losses = 0, True

    def resume_from(self, before: "PageParser") -> None:
        """Continue after the last ``take`` of another parser, perhaps between an event and its stack."""
        self._stacked, self._last, self._gaps = before._stacked, before._last, before._gaps
        self._followed = before._followed
        self.time = before.time

    @property
    def waiting(self) -> int:
        """The number of records and losses that ``take`` would return."""
        return len(self._batch.records) + len(self._batch.losses)

    def _walk(self, page: Buffer, cpu: int) -> None:
        geometry = self._geometry
        (time,) = LONG_WORD.unpack_from(page, 0)
        (commit,) = WORD.unpack_from(page, self._commit)
        at = geometry.data
        end = at + (commit & LENGTH)
        if end > min(len(page), geometry.page):
            raise _DamagedError
        if commit & MISSED:
            self._stacked.pop(cpu, None)
            self._followed.pop(cpu, None)
            self._gaps.add(cpu)
            if commit & COUNTED and end + geometry.commit_size <= len(page):
                count = LONG_WORD if geometry.commit_size == 8 else WORD
                self._batch.lost += count.unpack_from(page, end)[0]
        while at < end:
            word = _word(page, at, end)
            kind, delta = (word & 31, word >> 5) if LITTLE else (word >> 27, word & 0x7FFFFFF)
            if kind == PADDING and not delta:
                break
            if kind == TIME_EXTEND:
                time = (time + (_word(page, at + 4, end) << 27) + delta) & ULONG_MAX
                at += 8
            elif kind == TIME_STAMP:
                stamp = (time >> STAMP_BITS << STAMP_BITS) | ((_word(page, at + 4, end) << 27) + delta)
                time = stamp if stamp >= time else (stamp + (1 << STAMP_BITS)) & ULONG_MAX
                at += 8
            else:
                time = (time + delta) & ULONG_MAX
                length, head = kind * 4, 4
                if kind in (LONG, PADDING):
                    length = _word(page, at + 4, end)
                    if kind == LONG:
                        length, head = length - 4, 8
                start, at = at + head, at + head + ((length + 3) & ~3)
                if length < 0 or start + length > end:
                    raise _DamagedError
                if kind != PADDING:
                    self._event(page, start, start + length, time, cpu)
                    self._seen(cpu, time)
            self.time = time

    def _seen(self, cpu: int, time: int) -> None:
        """Note an event; missing events before it were lost after the previous one."""
        if cpu in self._gaps:
            self._gaps.remove(cpu)
            self._batch.losses.append(loss(cpu, self._last.get(cpu, 0), time))
        self._last[cpu] = time

    def _event(self, page: Buffer, start: int, end: int, time: int, cpu: int) -> None:
        if end - start < HEAD.size:
            raise _DamagedError
        number, flags, _, tid = HEAD.unpack_from(page, start)
        shapes = self._shapes.get(number)
        if shapes is None:
            self._stack_or_unknown(number, page, start, end, cpu, tid)
            return
        self._followed.pop(cpu, None)
        tgid = self._names.tgid(tid) if self._wants_tgid else None
        own = tid in self._own_threads and not in_interrupt(flags)
        expecting, following = [], []
        for shape, readers in shapes:
            if end - start < shape.size:
                raise _DamagedError
            if shape.of_threads != (cpu >= OF_THREADS):
                continue
            if own and (layout_id := shape.layout.layout_id) not in self._of_all_threads:
                self._batch.own[layout_id] += 1
                continue
            caller = None
            if shape.caller is not None:
                (address,) = LONG_WORD.unpack_from(page, start + shape.caller.offset)
                caller = self._names.caller(address)
            values = [read(page, start, end, tid) for read in readers]
            record: Record = (shape.layout.layout_id, time, cpu, tid, tgid, caller, *values)
            if not self._batch.passes(record, self._filters):
                continue
            self._batch.records.append(record)
            if shape.layout.stack:
                expecting.append(record)
            if shape.layout.user_stack:
                following.append(record)
        if expecting:
            self._stacked[cpu] = tid, expecting
        if following:
            self._followed[cpu] = tid, following

    def _stack_or_unknown(self, number: int, page: Buffer, start: int, end: int, cpu: int, tid: int) -> None:
        kernel, user = self._stacks
        if kernel is not None and number == kernel.id:
            self._stack(kernel, page, start, end, cpu, tid)
            return
        followed, records = self._followed.pop(cpu, (0, []))
        if user is None or number != user.id:
            self._batch.unparsed += 1
        elif records:
            self._user_stack(user, page, start, end, records if followed == tid else [])

    def _user_stack(
        self, layout: StackLayout, page: Buffer, start: int, end: int, records: list[Record]
    ) -> None:
        """Give a program's stack to the records right before it: every event of the instance has one."""
        if start + layout.process + 4 > end:
            raise _DamagedError
        (process,) = WORD.unpack_from(page, start + layout.process)
        found: list[int] = []
        for at in range(start + layout.offset, end - 7, 8):
            (address,) = LONG_WORD.unpack_from(page, at)
            if not address:
                break
            found.append(address)
        self._batch.user_stacks += [(record, process, tuple(found)) for record in records]

    def _stack(self, layout: StackLayout, page: Buffer, start: int, end: int, cpu: int, tid: int) -> None:
        """Give a stack to the record before it, which has the same CPU and thread."""
        expected, records = self._stacked.pop(cpu, (0, []))
        frames = []
        for at in range(start + layout.offset, end - 7, 8):
            (address,) = LONG_WORD.unpack_from(page, at)
            if address == ULONG_MAX:
                break
            frames.append(frame(self._names, address))
        if expected == tid:
            self._batch.stacks += [(record, tuple(frames)) for record in records]


def in_interrupt(flags: int) -> bool:
    """Return whether an event is of an interrupt, by its ``common_flags``.

    A kprobe that the kernel makes by a breakpoint handles it as an NMI (irqentry_nmi_enter, kernel/entry/
    common.c, since 5.8), which sets HARDIRQ as well: there only SOFTIRQ tells of what was interrupted.
    """
    return bool(flags & SOFTIRQ) or flags & (HARDIRQ | NMI) == HARDIRQ


def close_gaps(gaps: set[int], last: Mapping[int, int]) -> list[Loss]:
    """Return the losses of these CPUs whose end is not known yet, and clear ``gaps``."""
    losses = [loss(cpu, last.get(cpu, 0), UNKNOWN) for cpu in sorted(gaps)]
    gaps.clear()
    return losses


class _DamagedError(Exception):
    """A part of the page makes no sense."""


def _word(page: Buffer, at: int, end: int) -> int:
    if at + 4 > end:
        raise _DamagedError
    found: int = WORD.unpack_from(page, at)[0]
    return found
