"""Parses the text of trace_pipe: bytes in, records out; no files, no clock, no logging.

The lines are those of kernel/trace/trace_output.c (the prefix) and trace_probe.c (the body of probe events)
of Linux 5.10 to 6.18.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

from kprobe_exporter.model.values import TIME, Batch, Layout
from kprobe_exporter.source.pages import loss
from kprobe_exporter.source.stacks import StackAssembler
from kprobe_exporter.source.walk import Walk, text_key

NAME_COLUMNS = 16

PREFIX = (
    rb"(?s:.{16})-(\d{1,10}) +"  # the name: 16 columns of any bytes, newlines too; thread id
    rb"(?:\( *(?:(\d{1,10})|-+)\) )?"  # thread group, with option record-tgid
    rb"\[(\d{1,10})\] "  # CPU
    rb"(?:[^\s\d]\S{3,4} )?"  # irqs-off, need-resched, …: 4 columns, 5 since 5.14
    rb" *(\d{1,12})\.(\d{6}): "  # seconds
)
HEAD = re.compile(PREFIX + rb"([A-Za-z_]\w*(?:: |\(| -> ))")
"""The start of every event's line; a system call prints ``sys_NAME(`` and ``sys_NAME ->``."""

STACK = re.compile(PREFIX + rb"<stack trace>\n")

LOST = re.compile(rb"CPU:(\d{1,10}) \[LOST (?:(\d{1,20}) )?EVENTS\]\n")

COMMENT = b"#"
SPACE = ord(" ")

LONGEST = 65536
"""Bytes of a line. The kernel prints at most 8 KiB (struct trace_seq); a longer line is unparsed."""

MOST_CPUS = 8192
"""CPUs whose last event's time is kept (NR_CPUS of x86), because the text may name any number."""


class LineParser:
    """Turns the bytes of trace_pipe, cut at any place, into batches of records.

    The kernel prints strings unescaped. Arguments are walked in the order of the definition, and a string
    ends at its last possible end: the values that follow it cannot hold a quote, so a name with ``" x=`` in
    it does not derail the walk. If several strings can be cut in two ways, or a string holds a newline, the
    event counts and the strings are None: they are never guessed. (The text after the newline is a line of
    its own, and usually unparsed.)

    Several layouts may have the same text, such as two probes on one tracepoint: each makes its own record.
    Stacks are read if any layout asks for them; otherwise their lines are unparsed.

    A loss reaches from the last record of its CPU, or 0 if there is none, to the next record of any CPU,
    because the kernel prints in time order, and LOST right before the CPU's next event. Only records set
    these times. An unreadable line of a known event is such a loss too: if its text exceeds the kernel's
    buffer, it has no line end and has swallowed the next line.

    Every pattern takes time linear in the length of a line, for any content. Costs about 2 µs an event with
    two arguments. Not thread-safe.
    """

    def __init__(self, layouts: Iterable[Layout] = ()) -> None:
        shared: defaultdict[bytes, list[Layout]] = defaultdict(list)
        for layout in layouts:
            shared[text_key(layout)].append(layout)
        self._walks = {  # the usual case: one layout, no stack
            key: Walk.of(one) for key, (one, *more) in shared.items() if not more and not one.stack
        }
        self._others = {key: [*map(Walk.of, same)] for key, same in shared.items() if key not in self._walks}
        self._stacked = {key for key, same in shared.items() if any(layout.stack for layout in same)}
        self._stacks = StackAssembler()
        self._rest = b""
        self._last: dict[int, int] = {}
        self._gaps: dict[int, int] = {}
        self._gaps_at = 0

    def resume_from(self, before: "LineParser") -> None:
        """Continue where another parser stopped, possibly in the middle of a line."""
        self._rest, self._stacks = before._rest, before._stacks
        self._last, self._gaps = before._last, before._gaps

    def feed(self, data: bytes) -> Batch:
        """Return the records that end in ``data``; an unfinished line waits for the next call."""
        batch = Batch()
        data = self._rest + data
        at = self._parse(data, batch)
        self._rest = data[at : at + LONGEST]
        self._stacks.shift(at)
        self._stacks.hand_over(batch)
        self._close_gaps(batch)
        self._gaps_at = 0
        if len(self._last) > MOST_CPUS:
            self._last.clear()
        return batch

    def _parse(self, data: bytes, batch: Batch) -> int:
        """Parse the finished lines; return where the unfinished one starts."""
        append, walks, match_head, last = batch.records.append, self._walks, HEAD.match, self._last
        at, end = 0, data.rfind(b"\n") + 1
        while at < end:
            head = match_head(data, at, end)
            if head is None:
                if data[at] == SPACE and data.find(b"\n", at + NAME_COLUMNS, end) < 0:
                    break  # the newline may be part of a name
                at = self._no_event(data, at, end, batch)
                continue
            tid, tgid, cpu, seconds, micros, key = head.groups()
            walk, start = walks.get(key), head.end()
            body = walk.match(data, start, end) if walk else None
            if walk and body and (after := body.end()) - at <= LONGEST:
                time = int(seconds + micros) * 1000
                group = int(tgid) if tgid else None
                where = int(cpu)
                append(walk.record(body.groups(), time, where, int(tid), group))
                last[where] = time
                at = after
            else:
                at = self._other_event(head, batch)
        return at

    def _other_event(self, head: re.Match[bytes], batch: Batch) -> int:
        """Take in any event but a readable one with one layout and no stack; return where its line ends."""
        data, start = head.string, head.end()
        after = data.index(b"\n", start) + 1
        tid, tgid, cpu, seconds, micros, key = head.groups()
        walks = self._others.get(key, ())
        bodies = [walk.match(data, start, after) for walk in walks if after - head.start() <= LONGEST]
        prefix = int(seconds + micros) * 1000, int(cpu), int(tid), int(tgid) if tgid else None
        records = [
            walk.record(body.groups(), *prefix) for walk, body in zip(walks, bodies, strict=False) if body
        ]
        batch.records += records
        unparsed = max(1, len(walks)) - len(records)
        batch.unparsed += unparsed
        if records:
            self._last[int(cpu)] = prefix[0]
        if unparsed and (walks or key in self._walks):
            self._lost(int(cpu), batch)
        if key in self._stacked:
            self._stacks.expect(int(cpu), int(tid), records)
        return after

    def _no_event(self, data: bytes, at: int, end: int, batch: Batch) -> int:
        """Take in a line without an event; return where the next line starts."""
        if self._stacked:
            if found := STACK.match(data, at, end):
                self._stacks.begin(int(found[3]), int(found[1]), found.end(), batch)
                return found.end()
            if after := self._stacks.frame(data, at, end):
                return after
        if lost := LOST.match(data, at):
            batch.lost += int(lost[2] or 0)
            self._stacks.forget(int(lost[1]))
            self._lost(int(lost[1]), batch)
        elif not data.startswith(COMMENT, at):
            batch.unparsed += 1
        return data.index(b"\n", at) + 1

    def _lost(self, cpu: int, batch: Batch) -> None:
        """Note that events of this CPU are missing at this point of the text."""
        self._close_gaps(batch)
        if len(self._gaps) < MOST_CPUS:
            self._gaps.setdefault(cpu, self._last.get(cpu, 0))
        self._gaps_at = len(batch.records)

    def _close_gaps(self, batch: Batch) -> None:
        """Report the losses after which a record has arrived."""
        if not self._gaps or len(batch.records) == self._gaps_at:
            return
        end = batch.records[self._gaps_at][TIME]
        batch.losses += [loss(cpu, start, end) for cpu, start in self._gaps.items()]
        self._gaps.clear()
