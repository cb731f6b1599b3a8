"""Reads and parses trace_pipe, the kernel's text.

The lines are those of kernel/trace/trace_output.c (the prefix) and trace_probe.c (the body of probe events)
of Linux 5.10 to 6.18.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from kprobe_exporter.errors import SourceError
from kprobe_exporter.model.aggregation import Recipe, RecordFilter
from kprobe_exporter.model.records import LAYOUT_ID, TIME, Batch, Layout
from kprobe_exporter.source.line_stacks import StackAssembler, UserStackAssembler
from kprobe_exporter.source.pages import loss
from kprobe_exporter.source.repeated_lines import RepeatedLines
from kprobe_exporter.source.walk import Walk, text_key

NAME_COLUMNS = 16

PREFIX = (
    rb"(?s:.{16})-(\d{1,10}) +"  # the name: 16 columns of any bytes, newlines too; thread id
    rb"(?:\( *(\d{1,10}|-+)\) )?"  # thread group, with option record-tgid
    rb"\[(\d{1,10})\] "  # CPU
    rb"(?:[^\s\d]\S{3,4} )?"  # irqs-off, need-resched, …: 4 columns, 5 since 5.14
    rb" *(\d{1,12})\.(\d{6}): "  # seconds
)
HEAD = re.compile(PREFIX + rb"(\w+(?:: |\(| -> ))")
"""The start of every event's line. A tracepoint's name may begin with a digit, as ``9p_client_req``; a system
call prints ``sys_NAME(`` and ``sys_NAME ->``."""

STACK = re.compile(PREFIX + rb"<(user )?stack trace>\n")

LOST = re.compile(rb"CPU:(\d{1,10}) \[LOST (?:(\d{1,20}) )?EVENTS\]\n")

LONGEST = 65536
"""Bytes of a line. The kernel prints at most 8 KiB (struct trace_seq); a longer line is unparsed."""

MOST_CPUS = 8192
"""CPUs whose last event's time is kept (NR_CPUS of x86), because the text may name any number."""

BATCH_BYTES = 65536
"""Text that makes a batch: adding up 600 records at once costs half of what 40 at a time do. It is more than
a read ever returns: one trace_seq, 4 KiB on 6.1 and 8 KiB on 6.12."""

MOST_BATCHES = 2500
"""Batches in one round: 160 MB of text, more than the ring buffers hold. It ends a round during a flood."""


class LineParser:
    """Turns the bytes of trace_pipe, cut at any place, into batches of records.

    The kernel prints strings unescaped. Arguments are walked in the order of the definition, and a string
    ends at its last possible end: the values that follow it cannot hold a quote, so a name with ``" x=`` in
    it does not derail the walk. If several strings can be cut in two ways, or a string holds a newline, the
    event counts and the strings are None: they are never guessed. (The text after the newline is a line of
    its own, and usually unparsed.)

    Several layouts may have the same text, such as two probes on one tracepoint: each makes its own record.
    Stacks are read if any layout asks for them; otherwise their lines are unparsed. If it asks for those of
    programs, each line is read by itself.

    A loss reaches from the last record of its CPU, or 0 if it has none, to the next record of any CPU. The
    reason is that the kernel prints in time order, and LOST right before the CPU's next event. Only records
    set these times. An unreadable line of a known event is such a loss too: if its text exceeds the kernel's
    buffer, it has no line end and has swallowed the next line.

    Lines of layouts in ``recipes`` that were read before are only counted: ``take`` gives them.

    The process is that of ``tgid``. If this returns None it is that of the text, which may be wrong: with a
    new thread the kernel prints none, or that of an earlier thread with the same id. It saves the process
    when it switches threads (probe_sched_switch() of kernel/trace/trace_sched_switch.c).

    Every pattern takes time linear in the length of a line, for any content. Costs about 2 µs an event with
    two arguments, and 0.1 µs one that is only counted. Not thread-safe.
    """

    def __init__(
        self,
        layouts: Iterable[Layout] = (),
        filters: Mapping[int, RecordFilter] | None = None,
        recipes: Mapping[int, Recipe] | None = None,
        tgid: Callable[[int], int | None] = lambda tid: None,
    ) -> None:
        self._filters = filters or {}
        self._tgid = tgid
        shared: defaultdict[bytes, list[Layout]] = defaultdict(list)
        for layout in layouts:
            shared[text_key(layout)].append(layout)
        self._followed_by_user = {one.layout_id for same in shared.values() for one in same if one.user_stack}
        alone = {  # the usual case: one layout, no stack, no filter
            key: one
            for key, (one, *more) in shared.items()
            if not more
            and not one.stack
            and one.layout_id not in self._filters
            # Each event has a program's stack then, which has to be told apart.
            and not self._followed_by_user
        }
        self._walks = {key: Walk.of(one) for key, one in alone.items()}
        # A thread's cgroup is looked up at each record's place in the stream.
        counted = {key: one for key, one in (recipes or {}).items() if not one.by_cgroup}
        self._repeated = RepeatedLines.of(alone, counted) if counted else None
        self._others = {key: [*map(Walk.of, same)] for key, same in shared.items() if key not in self._walks}
        self._stacked = {key for key, same in shared.items() if any(layout.stack for layout in same)}
        self._stacks = StackAssembler()
        self._user_stacks = UserStackAssembler()
        self._rest = b""
        self._last: dict[int, int] = {}
        self._gaps: dict[int, int] = {}
        self._gaps_at = 0

    def resume_from(self, before: "LineParser") -> None:
        """Continue where another parser stopped, possibly in the middle of a line."""
        self._rest, self._stacks, self._user_stacks = before._rest, before._stacks, before._user_stacks
        self._last, self._gaps = before._last, before._gaps

    def take(self) -> Batch:
        """Return the lines that were only counted since the last call."""
        return Batch(repeated=self._repeated.take()) if self._repeated is not None else Batch()

    def feed(self, data: bytes) -> Batch:
        """Return the records that end in ``data``; an unfinished line waits for the next call."""
        batch = Batch()
        data = self._rest + data
        at = self._parse(data, batch)
        self._rest = data[at : at + LONGEST]
        for stacks in (self._stacks, self._user_stacks):
            stacks.shift(at)
            stacks.hand_over(batch)
        self._close_gaps(batch)
        self._gaps_at = 0
        if len(self._last) > MOST_CPUS:
            self._last.clear()
        return batch

    def _parse(self, data: bytes, batch: Batch) -> int:
        """Parse the finished lines; return where the unfinished one starts."""
        append, walks, match_head, last = batch.records.append, self._walks, HEAD.match, self._last
        at, end = 0, data.rfind(b"\n") + 1
        repeated = self._repeated
        while at < end:
            if repeated is not None and (after := repeated.scan(data, at, end)) > at:
                self._counted(batch, *repeated.last_scan())
                at = after
                if at == end:
                    break
            head = match_head(data, at, end)
            if head is None:
                if data.startswith(b" ", at) and data.find(b"\n", at + NAME_COLUMNS, end) < 0:
                    break  # the newline may be part of a name
                at = self._no_event(data, at, end, batch)
                continue
            tid, tgid, cpu, seconds, micros, key = head.groups()
            walk, start = walks.get(key), head.end()
            body = walk.match(data, start, end) if walk else None
            if walk and body and (after := body.end()) - at <= LONGEST:
                time = int(seconds + micros) * 1000
                where = int(cpu)
                record = walk.record(body.groups(), time, where, *self._thread(tid, tgid))
                append(record)
                last[where] = time
                at = after
                if repeated and not repeated.learn(key, record, data, head.start(6), after - 1):
                    batch.repeated += repeated.take()
                    if not repeated.start_again():
                        self._repeated = repeated = None
            else:
                at = self._other_event(head, batch)
        return at

    def _thread(self, tid: bytes, tgid: bytes | None) -> tuple[int, int | None]:
        """Return the ids of a thread and its process; ``tgid`` is None without option record-tgid."""
        number = int(tid)
        if tgid is None:
            return number, None
        return number, self._tgid(number) or (int(tgid) if tgid.isdigit() else None)

    def _counted(self, batch: Batch, first: int, lasts: Mapping[int, int]) -> None:
        """Take in lines that were only counted: the first one's time, and the last one's of each CPU."""
        self._close_gaps(batch)
        batch.losses += [loss(cpu, start, first) for cpu, start in self._gaps.items()]
        self._gaps.clear()
        self._last.update(lasts)

    def _other_event(self, head: re.Match[bytes], batch: Batch) -> int:
        """Take in any event but a readable one with one layout and no stack; return where its line ends."""
        data, start = head.string, head.end()
        after = data.index(b"\n", start) + 1
        tid, tgid, cpu, seconds, micros, key = head.groups()
        walks = self._others.get(key, ())
        fits = after - head.start() <= LONGEST
        matches = [(walk, walk.match(data, start, after)) for walk in walks if fits]
        prefix = int(seconds + micros) * 1000, int(cpu), *self._thread(tid, tgid)
        found = [walk.record(body.groups(), *prefix) for walk, body in matches if body]
        records = [record for record in found if batch.passes(record, self._filters)]
        batch.records += records
        unparsed = max(1, len(walks)) - len(found)
        batch.unparsed += unparsed
        if found:
            self._last[int(cpu)] = prefix[0]
        if unparsed and (walks or key in self._walks):
            self._lost(int(cpu), batch)
        if key in self._stacked:
            self._stacks.expect(int(cpu), int(tid), records)
        if self._followed_by_user:
            following = [one for one in records if one[LAYOUT_ID] in self._followed_by_user]
            self._user_stacks.expect(int(cpu), int(tid), following)
        return after

    def _no_event(self, data: bytes, at: int, end: int, batch: Batch) -> int:
        """Take in a line without an event; return where the next line starts."""
        if self._stacked or self._followed_by_user:
            if found := STACK.match(data, at, end):
                tid, tgid, cpu, _, _, of_program = found.groups()
                if of_program:
                    thread, process = self._thread(tid, tgid)
                    self._user_stacks.begin(int(cpu), thread, process or thread, found.end(), batch)
                else:
                    self._stacks.begin(int(cpu), int(tid), found.end(), batch)
                return found.end()
            if after := self._stacks.frame(data, at, end) or self._user_stacks.frame(data, at, end):
                return after
        if lost := LOST.match(data, at):
            batch.lost += int(lost[2] or 0)
            self._stacks.forget(int(lost[1]))
            self._user_stacks.forget(int(lost[1]))
            self._lost(int(lost[1]), batch)
        elif not data.startswith(b"#", at):
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
        if self._gaps and len(batch.records) > self._gaps_at:
            end = batch.records[self._gaps_at][TIME]
            batch.losses += [loss(cpu, start, end) for cpu, start in self._gaps.items()]
            self._gaps.clear()


class TextPipe:
    """One trace_pipe and its parser; ``deliver`` gets a batch for each BATCH_BYTES, and for what is left."""

    pause = 20  # ms; waking for each event would cost the kernel and the agent more than the event

    def __init__(self, pipe: int, parser: LineParser, deliver: Callable[[Batch], None]) -> None:
        self.descriptors = [pipe]
        self._pipe = pipe
        self._parser = parser
        self._deliver = deliver

    def empty(self, *, last: bool) -> None:
        """Read until nothing is left. End of file is not the end: tracing_on is 0, and may become 1 again."""
        try:
            self._read_round()
        except SourceError:
            self._deliver_counted()
            raise
        self._deliver_counted()

    def _deliver_counted(self) -> None:
        if (counted := self._parser.take()).repeated:
            self._deliver(counted)

    def _read_round(self) -> None:
        for _ in range(MOST_BATCHES):
            text = bytearray()
            try:
                while len(text) < BATCH_BYTES and (data := self._read()):
                    text += data
            finally:  # what was read before an error is delivered
                if text:
                    self._deliver(self._parser.feed(bytes(text)))
            if len(text) < BATCH_BYTES:
                return

    def _read(self) -> bytes:
        try:
            return os.read(self._pipe, BATCH_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise SourceError(f"trace_pipe cannot be read any more: {error.strerror}.") from error

    def adopt(self, parser: LineParser) -> None:
        """Continue with a parser for other layouts, between two rounds."""
        parser.resume_from(self._parser)
        self._parser = parser

    def close(self) -> None:
        os.close(self._pipe)
