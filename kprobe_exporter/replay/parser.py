"""Reads saved trace text without knowing the definitions: a file, a copy from a terminal, a document."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kprobe_exporter.model.records import Batch, Layout, Record
from kprobe_exporter.model.values import Arg, Value
from kprobe_exporter.replay.bodies import EVENT, Argument, Form, Head, number, read_arguments, read_head
from kprobe_exporter.source.line_stacks import StackAssembler
from kprobe_exporter.source.lines import LONGEST, NAME_COLUMNS
from kprobe_exporter.source.walk import arguments_pattern

PREFIX = (
    rb"-(\d{1,10})( +)"  # thread id, padded to 5 columns, to 7 since 5.10
    rb"(?:\( *(?:(\d{1,10})|-+)\) +)?"  # thread group, with option record-tgid
    rb"\[(\d{1,10})\] +"  # CPU
    rb"(?:([^\s\d]\S{3,6}) +)?"  # irqs-off, …: none before 3.4, then 4 columns, 5 since 5.14, up to 7 of -rt
    rb"(\d{1,12}\.\d{6}|\d{1,20}): "  # seconds; the clocks counter, uptime, x86-tsc are bare numbers
)
COLUMNS = re.compile(rb" (?s:.{15})" + PREFIX)
"""The kernel's own form: the name takes 16 columns, of which the first is blank and the rest any bytes."""

LOOSE = re.compile(rb"[ \t]*+[^\n]{0,15}" + PREFIX)
"""The form after a copy: leading blanks are missing, or there are more of them."""

SWALLOWED = re.compile(rb"-(?<= [^\n]{15}-)" + PREFIX.removeprefix(b"-") + EVENT.pattern)
"""An event's line within another, which has no end: trace_printk() of a text without a newline, say. The
pattern begins with a character, because a search for one is fast."""

STACK = re.compile(rb"<(?:user )?stack trace>[ \t]*\n")
LOST = re.compile(rb"[ \t]*CPU:(\d{1,10}) \[LOST (?:(\d{1,20}) )?EVENTS\][ \t]*\n")
HEADER = re.compile(
    rb"[ \t]*# (?:entries-in-buffer/entries-written: |latency: \d{1,20} us, #)(\d{1,20})/(\d{1,20})\b"
)
"""The numbers in the header of ``trace``, of all CPUs also in ``per_cpu/cpuN`` (print_event_info() of
kernel/trace/trace.c); events that were written and are not in the buffer were overwritten."""

NOTHING = re.compile(rb"[ \t\r]*(?:#[^\n]*)?\n")
"""A blank line, or a comment: the header of ``trace``, ``##### CPU 0 buffer started ####``."""

CONTINUED = re.compile(rb"[\w.+/]*+(?: [A-Za-z_]\w*=[^\s\"]+)+[ \t]*\n")
"""The rest of an event that a terminal wrapped within a value."""

RETURN_NAMES = ("return", "ret", "retval", "rval")
"""Arguments that are taken for the return value of an event that has one."""

LAYOUTS = 1000
LAYOUTS_OF_AN_EVENT = 8
OVERFLOW = "__overflow__"
"""The event that takes all events beyond LAYOUTS, because the text is untrusted and memory is limited."""


LONGEST_KEPT, MOST_KEPT = 512, 16_384
"""Bytes of an event's text whose values are kept, since most texts come again; and the number of these."""


class _Read(NamedTuple):
    """The result of the text of an event."""

    layout_id: int
    caller: bytes | None
    values: tuple[Value, ...]
    ambiguous: bool
    cut: bool


LayoutKey: TypeAlias = tuple[str, Form, str, tuple[Arg, ...]]
Known: TypeAlias = tuple[tuple[Arg, ...], re.Pattern[bytes]]
"""The arguments that an event has had once, and the pattern that reads them."""


@dataclass(slots=True)
class SavedBatch(Batch):
    """A batch, and what else the text held: ``cut`` are the indices of the records whose line ends too early;
    ``ambiguous`` counts return values that may be decimal or hexadecimal; ``swallowed`` counts the lines
    within others, whose events are not counted."""

    lines: int = 0
    swallowed: int = 0
    cut: list[int] = field(default_factory=list)
    ambiguous: int = 0


@dataclass(slots=True)
class _Losses:
    """The events that one ring buffer lost, each reported once.

    LOST lines and headers both come from the buffer's ``overrun``, which only grows: the larger is the loss.
    """

    lines: int = 0  # the sum of the LOST lines
    header: int = 0  # the loss by the headers
    written: int = 0  # the last header's number

    def add_line(self, events: int) -> int:
        """Return by how many events this LOST line increases the loss."""
        before = max(self.lines, self.header)
        self.lines += events
        return max(self.lines, self.header) - before

    def add_header(self, entries: int, written: int) -> int:
        """Return by how many events this header increases the loss."""
        if written < self.written:  # the buffer was cleared, or it is another one
            self.lines = self.header = 0
        before = max(self.lines, self.header)
        self.written = written
        self.header = max(self.header, written - entries)
        return max(self.lines, self.header) - before


class SavedParser:
    """Turns saved text of any kernel since 2.6.33 into batches of records, and learns the layouts from it.

    An event's first line defines its arguments. Later lines are read by them, as LineParser does, so that a
    string with ``" x=`` in it is one string. A line that cannot be read by them redefines the arguments,
    because documents define one name again and again. ``learnt`` is called with each layout before its first
    record. A value is a number only if it can be nothing else (``bodies.number``), else text. If the first
    line ends with CRLF, CRLF ends all lines. Any bytes give records or a counted rejection, in time linear in
    the length of a line, and what is kept is bounded. Reads about 100,000 lines a second, and four times as
    many of texts that came before. Not thread-safe.
    """

    def __init__(self, learnt: Callable[[Layout], None] = lambda _: None) -> None:
        self._learnt = learnt
        self._layouts: dict[LayoutKey, Layout] = {}
        self._known: dict[tuple[str, str], list[Known]] = {}
        self._taught = 0
        self._read: dict[tuple[bytes, bool], _Read] = {}
        self._stacks = StackAssembler()
        self._losses = _Losses()
        self._rest = b""
        self._crlf: bool | None = None  # None until the first line has ended
        self._return = b""  # a carriage return at the end of what was fed

    def feed(self, data: bytes) -> SavedBatch:
        """Return the records that end in ``data``; a line waits until the next line is there."""
        return self._parse(self._rest + self._with_newlines(data), last=False)

    def finish(self) -> SavedBatch:
        """Return the records of the text that still waits."""
        rest = self._rest + self._return
        batch = self._parse(rest if rest.endswith(b"\n") or not rest else rest + b"\n", last=True)
        self._stacks.hand_over(batch)
        return batch

    def _with_newlines(self, data: bytes) -> bytes:
        """Return the data with CRLF as newlines, if the first line ends so."""
        data = self._return + data
        if self._crlf is None and (at := data.find(b"\n")) >= 0:
            self._crlf = data.endswith(b"\r", 0, at)
        at = len(data) - data.endswith(b"\r")
        self._return = data[at:]
        return data[:at].replace(b"\r\n", b"\n") if self._crlf else data[:at]

    def _parse(self, data: bytes, last: bool) -> SavedBatch:
        batch = SavedBatch()
        at, end = 0, data.rfind(b"\n") + 1
        # A name with newlines in it takes columns of the next line.
        settled = end if last else data.rfind(b"\n", 0, max(0, end - 1)) - NAME_COLUMNS
        while at < settled:
            after = self._line(data, at, end, batch)
            batch.lines += data.count(b"\n", at, after)
            at = after
        self._rest = data[at : end + LONGEST + 1]
        self._stacks.shift(at)
        return batch

    def _line(self, data: bytes, at: int, end: int, batch: SavedBatch) -> int:
        """Take in one line; return where the next one starts."""
        found = COLUMNS.match(data, at, end)
        if found is None:
            if after := self._stacks.frame(data, at, end):
                return after
            found = LOOSE.match(data, at, end)
        start = found.end() if found else at
        after = data.index(b"\n", start) + 1
        if found is None or after - at > LONGEST:
            if lost := LOST.match(data, at):
                batch.lost += self._losses.add_line(int(lost[2] or 0))
                self._stacks.forget(int(lost[1]))
            elif header := HEADER.match(data, at, after):
                batch.lost += self._losses.add_header(int(header[1]), int(header[2]))
            elif not NOTHING.match(data, at):
                batch.unparsed += 1
        elif stack := STACK.match(data, found.end(), after):
            self._stacks.begin(int(found[4]), int(found[1]), stack.end(), batch)
        elif not self._event(found, after, CONTINUED.match(data, after, end) is not None, batch):
            batch.unparsed += 1
        batch.swallowed += len(SWALLOWED.findall(data, start, after))
        return after

    def _event(self, prefix: re.Match[bytes], after: int, continued: bool, batch: SavedBatch) -> bool:
        """Make a record of an event; return False if the text is not an event."""
        text = prefix.string[prefix.end() : after - 1]
        tid, padding, tgid, cpu, flags, time = prefix.groups()
        decimal = len(flags or b"") == 5 or (len(tid) <= 6 and len(tid + padding) == 8)
        read = None if continued else self._read.get((text, decimal))
        if read is None and (read := self._read_text(text, decimal, continued)) is None:
            return False
        layout_id, caller, values, ambiguous, cut = read
        batch.ambiguous += ambiguous
        group = int(tgid) if tgid else None
        record: Record = (layout_id, _time(time), int(cpu), int(tid), group, caller, *values)
        if cut:
            batch.cut.append(len(batch.records))
        batch.records.append(record)
        self._stacks.expect(int(cpu), int(tid), [record])
        return True

    def _read_text(self, text: bytes, decimal: bool, continued: bool) -> _Read | None:
        """Read the text of an event; return None if it is none. Keep what the same text gives again.

        That may change only while the arguments of the event are learnt from it.
        """
        head = read_head(text)
        if head is None:
            return None
        taught = self._taught
        arguments, cut = self._arguments(text, head, decimal, continued)
        ambiguous = False
        if returned := _returned(head, arguments):
            arguments = [*((arg, value) for arg, value in arguments if arg.name != "return"), returned]
            ambiguous = isinstance(returned[1], bytes)
        layout = self._layout(head, tuple(arg for arg, _ in arguments))
        values = tuple(value for _, value in arguments) if layout.args else ()
        read = _Read(layout.layout_id, head.caller, values, ambiguous, cut)
        if self._taught == taught and not cut and not continued and len(text) <= LONGEST_KEPT:
            if len(self._read) >= MOST_KEPT:
                self._read.clear()
            self._read[text, decimal] = read
        return read

    def _arguments(
        self, text: bytes, head: Head, decimal: bool, continued: bool
    ) -> tuple[list[Argument], bool]:
        """Return the arguments, by what was learnt of this event, and whether the line is cut."""
        if head.arguments != "probe":
            return read_arguments(text, head, decimal)
        known = self._known.get((head.event, head.form), [])
        if not continued:
            for args, pattern in known:
                if found := pattern.fullmatch(text, head.at):
                    return [
                        (arg, number(value, decimal) if arg.kind == "bare" else value)
                        for arg, value in zip(args, found.groups(), strict=True)
                    ], False
        arguments, cut = read_arguments(text, head, decimal)
        if continued and not cut:  # the last value continues in the next line
            return arguments[:-1], True
        if not cut and len(known) < LAYOUTS_OF_AN_EVENT and self._taught < LAYOUTS:
            self._taught += 1
            args = tuple(arg for arg, _ in arguments)
            pattern = re.compile(b"".join(arguments_pattern(args)))
            self._known[head.event, head.form] = [*known, (args, pattern)]
        return arguments, cut

    def _layout(self, head: Head, args: tuple[Arg, ...]) -> Layout:
        key: LayoutKey = (head.event, head.form, head.symbol, args)
        if key not in self._layouts and len(self._layouts) >= LAYOUTS:
            key = (OVERFLOW, "tracepoint", OVERFLOW, ())
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout(len(self._layouts), key[0], *key)
            self._learnt(layout)
        return layout


def _returned(head: Head, arguments: list[Argument]) -> Argument | None:
    """Return the return value under the agent's name for it, signed as the kernel's register is."""
    if head.form == "entry" or (head.form == "tracepoint" and head.arguments != "value"):
        return None
    # Before 2.6.33 the kernel itself gave the name.
    names = ("rv", *RETURN_NAMES) if head.arguments == "hex" else RETURN_NAMES
    found = next((one for name in names for one in arguments if one[0].name == name), None)
    if found is None and head.form == "return" and len(arguments) == 1:
        (found,) = arguments
    if found is None or found[0].kind != "bare":
        return None
    value = found[1]
    if isinstance(value, int) and value >= 1 << 63:
        value -= 1 << 64
    return Arg("return", "bare"), value


def _time(text: bytes) -> int:
    """Return nanoseconds, or the number of a clock that does not count seconds."""
    return int(text.replace(b".", b"")) * 1000 if b"." in text else int(text)
