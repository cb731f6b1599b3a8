"""The text of trace_pipe, parsed: bytes in, records out; no files, no clock, no logging.

The lines are those of kernel/trace/trace_output.c (the prefix) and trace_probe.c (the body of probe
events) of Linux 5.10 to 6.18.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kprobe_exporter.model import Arg, Batch, Layout, Record, Value

HEAD = re.compile(
    rb"(?s:.{16})-(\d+) +"  # the name takes 16 columns whatever it holds, a newline too; thread id
    rb"(?:\( *(\d+|-+)\) )?"  # thread group, with option record-tgid
    rb"\[(\d+)\] "  # CPU
    rb"(?:[^\s\d]\S{3,4} )?"  # irqs-off, need-resched, …: 4 columns, 5 since 5.14
    rb" *(\d+)\.(\d{6}): "  # seconds
    rb"([A-Za-z_]\w*)(: |\(| -> )"  # event; a system call prints sys_NAME( and sys_NAME ->
)
"""What every event's line starts with."""

LOST = re.compile(rb"CPU:\d+ \[LOST (?:(\d+) )?EVENTS\]\n")

COMMENT = b"#"

ADDRESS = rb"\([^)\n]*\)"
RETURN_ADDRESS = rb"\(([^\s)+]*)[^)\n]*? <- [^)\n]*\)"

VALUE_PATTERNS = {
    "int": rb"(-?\d+|0x[0-9a-f]+|\(fault\))",
    "hex": rb"((?:0x)?[0-9a-f]+)",
    "str": rb'(?:"([^\n]*)"|\(fault\))',
    "bare": rb"('.'|\{[^\n]*?\}|[^\s]+(?: \[\w+\])?)",
}


class LineParser:
    """Turns the bytes of trace_pipe, however they are cut, into batches of records.

    Arguments are walked in the order of the definition, the last possible end of a string taken for
    its end: what follows a string are values that cannot hold a quote, so a name with ``" x=`` in
    it does not derail the walk. Where another string follows and the text could be cut in two ways,
    the strings are given as None rather than guessed.

    Costs about 2 µs an event with two arguments. Not thread-safe.
    """

    def __init__(self, layouts: Iterable[Layout] = ()) -> None:
        self._walks = {text_key(layout): _Walk.of(layout) for layout in layouts}
        self._rest = b""

    def feed(self, data: bytes) -> Batch:
        """The records that end in ``data``; an unfinished line waits for the next call."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        return self._parse(data, end)

    def _parse(self, data: bytes, end: int) -> Batch:
        batch = Batch()
        append = batch.records.append
        walks, match_head, at = self._walks, HEAD.match, 0
        while at < end:
            head = match_head(data, at, end)
            if head is not None:
                tid, tgid, cpu, seconds, micros, name, mark = head.groups()
                walk = walks.get(name + mark)
                body = walk and walk.pattern.match(data, head.end(), end)
                if walk and body:
                    time = (int(seconds) * 1_000_000 + int(micros)) * 1000
                    group = int(tgid) if tgid and tgid.isdigit() else None
                    append(walk.record(body.groups(), time, int(cpu), int(tid), group))
                    at = body.end()
                    continue
            elif (lost := LOST.match(data, at, end)) is not None:
                batch.lost += int(lost[1] or 0)
                at = lost.end()
                continue
            if not data.startswith(COMMENT, at):
                batch.unparsed += 1
            at = data.find(b"\n", at if head is None else head.end() - 1) + 1 or end
        return batch


def text_key(layout: Layout) -> bytes:
    """How a line of this layout names itself: the event, or the system call's own spelling."""
    if layout.form == "tracepoint":
        if layout.event.startswith("sys_enter_"):
            return b"sys_" + layout.event.removeprefix("sys_enter_").encode() + b"("
        if layout.event.startswith("sys_exit_"):
            return b"sys_" + layout.event.removeprefix("sys_exit_").encode() + b" -> "
    return layout.event.encode() + b": "


class _Walk(NamedTuple):
    """One layout, compiled: the pattern of its body and how each group becomes a value."""

    slot: int
    has_caller: bool
    pattern: re.Pattern[bytes]
    convert: tuple[Callable[[bytes | None], Value], ...]
    ambiguous: tuple[tuple[int, bytes], ...]
    strings: frozenset[int]

    @classmethod
    def of(cls, layout: Layout) -> "_Walk":
        has_caller = layout.form == "return"
        if layout.pattern is not None:
            pattern = layout.pattern
        else:
            pattern = (RETURN_ADDRESS if has_caller else ADDRESS) + b"".join(
                b" " + arg.name.encode() + b"=" + VALUE_PATTERNS[arg.kind] for arg in layout.args
            )
        strings = [number for number, arg in enumerate(layout.args) if arg.kind == "str"]
        return cls(
            layout.slot,
            has_caller,
            re.compile(pattern + rb"\n"),
            tuple(_converter(arg) for arg in layout.args),
            tuple((n, b'" ' + layout.args[n + 1].name.encode() + b"=") for n in strings[:-1]),
            frozenset(strings),
        )

    def record(
        self, groups: tuple[bytes | None, ...], time: int, cpu: int, tid: int, tgid: int | None
    ) -> Record:
        caller = None
        if self.has_caller:
            caller, *texts = groups
            if caller is not None and caller.startswith(b"["):  # [unknown/kretprobe'd]
                caller = None
            groups = tuple(texts)
        values: Iterable[Value] = [convert(text) for convert, text in zip(self.convert, groups, strict=True)]
        for number, cut in self.ambiguous:
            if cut in (groups[number] or b""):
                values = [None if n in self.strings else v for n, v in enumerate(values)]
                break
        return (self.slot, time, cpu, tid, tgid, caller, *values)


def _converter(arg: Arg) -> Callable[[bytes | None], Value]:
    if arg.kind in ("str", "bare"):
        return _text
    if arg.kind == "int":
        return _number
    if not arg.bits:
        return _hexadecimal
    wrap, sign = 1 << arg.bits, 1 << (arg.bits - 1)

    def signed(text: bytes | None) -> Value:
        number = int(text or b"0", 16)
        return number - wrap if number >= sign else number

    return signed


def _text(text: bytes | None) -> Value:
    return text


def _hexadecimal(text: bytes | None) -> Value:
    return int(text or b"0", 16)


def _number(text: bytes | None) -> Value:
    if text is None or text == b"(fault)":
        return None
    return int(text, 16) if text.startswith(b"0x") else int(text)
