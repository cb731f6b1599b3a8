"""The text of trace_pipe, parsed: bytes in, records out; no files, no clock, no logging.

The lines are those of kernel/trace/trace_output.c (the prefix) and trace_probe.c (the body of probe
events) of Linux 5.10 to 6.18.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from kprobe_exporter.model import VALUES, Arg, Batch, Layout, Record, Value

NAME_COLUMNS = 16

HEAD = re.compile(
    rb"(?s:.{16})-(\d{1,10}) +"  # the name takes 16 columns whatever it holds, a newline too; thread id
    rb"(?:\( *(?:(\d{1,10})|-+)\) )?"  # thread group, with option record-tgid
    rb"\[(\d{1,10})\] "  # CPU
    rb"(?:[^\s\d]\S{3,4} )?"  # irqs-off, need-resched, …: 4 columns, 5 since 5.14
    rb" *(\d{1,12})\.(\d{6}): "  # seconds
    rb"([A-Za-z_]\w*(?:: |\(| -> ))"  # event; a system call prints sys_NAME( and sys_NAME ->
)
"""What every event's line starts with."""

LOST = re.compile(rb"CPU:\d+ \[LOST (?:(\d{1,20}) )?EVENTS\]\n")

COMMENT = b"#"
SPACE = ord(" ")

LONGEST = 65536
"""Bytes of a line; the kernel prints 8 KiB at the most (struct trace_seq). What is longer is unparsed."""

ADDRESS = rb"\([^)\n]*+\)"
RETURN_ADDRESS = rb"\((?:\[unknown/kretprobe'd\]|([^\s)+]++))[^)\n<]*+<- [^)\n]*+\)"

ELEMENT = rb"""(?:'.'|[^'",{}\n]++)"""
VALUE_PATTERNS = {
    "int": rb"(0x[0-9a-f]{1,16}|-?[0-9]{1,20}|\(fault\))",
    "hex": rb"((?:0x)?[0-9a-f]{1,16})",
    "bare": rb"('.'|\{" + ELEMENT + rb"(?:," + ELEMENT + rb")*+\}|\S++(?: \[\w++\])?+)",
    "str": rb'(?:"(%s)"|\(fault\))',
    "texts": rb"(\{%s\})",
}
UNTRUSTED = ("str", "texts")
"""Kinds whose text is whatever a process wished."""


class LineParser:
    """Turns the bytes of trace_pipe, however they are cut, into batches of records.

    The kernel prints strings unescaped. Arguments are walked in the order of the definition, and
    the last possible end of a string is taken for its end: what follows it are values that cannot
    hold a quote, so a name with ``" x=`` in it does not derail the walk. Where several strings could
    be cut in two ways, or a newline is in one, the event counts and they are None: never guessed.
    (What follows the newline is a line of its own, and most often unparsed.)

    Every pattern is linear in the length of a line, whatever it holds. Costs about 2 µs an event with
    two arguments. Not thread-safe.
    """

    def __init__(self, layouts: Iterable[Layout] = ()) -> None:
        self._walks = {text_key(layout): _Walk.of(layout) for layout in layouts}
        self._rest = b""

    def feed(self, data: bytes) -> Batch:
        """The records that end in ``data``; an unfinished line waits for the next call."""
        batch = Batch()
        data = self._rest + data
        at = self._parse(data, batch)
        self._rest = data[at : at + LONGEST]
        return batch

    def _parse(self, data: bytes, batch: Batch) -> int:
        """Parse the finished lines; returns where the unfinished one starts."""
        append, walks, match_head = batch.records.append, self._walks, HEAD.match
        at, end = 0, data.rfind(b"\n") + 1
        while at < end:
            head = match_head(data, at, end)
            if head is None:
                if data[at] == SPACE and data.find(b"\n", at + NAME_COLUMNS, end) < 0:
                    break  # the newline may be a name's
                _count_other(data, at, batch)
                at = data.index(b"\n", at) + 1
                continue
            tid, tgid, cpu, seconds, micros, key = head.groups()
            walk, start = walks.get(key), head.end()
            body = walk.match(data, start, end) if walk else None
            if walk and body and (after := body.end()) - at <= LONGEST:
                time = int(seconds + micros) * 1000
                group = int(tgid) if tgid else None
                append(walk.record(body.groups(), time, int(cpu), int(tid), group))
                at = after
            else:
                batch.unparsed += 1
                at = data.index(b"\n", start) + 1
        return at


def _count_other(data: bytes, at: int, batch: Batch) -> None:
    """Count a line that is no event's."""
    if lost := LOST.match(data, at):
        batch.lost += int(lost[1] or 0)
    elif not data.startswith(COMMENT, at):
        batch.unparsed += 1


def text_key(layout: Layout) -> bytes:
    """How a line of this layout names itself: the event, or the system call's own spelling."""
    if layout.form == "tracepoint":
        if layout.event.startswith("sys_enter_"):
            return b"sys_" + layout.event.removeprefix("sys_enter_").encode() + b"("
        if layout.event.startswith("sys_exit_"):
            return b"sys_" + layout.event.removeprefix("sys_exit_").encode() + b" -> "
    return layout.event.encode() + b": "


Groups: TypeAlias = tuple[bytes | None, ...]
Recorder: TypeAlias = Callable[[Groups, int, int, int, int | None], Record]


class _Walk(NamedTuple):
    """One layout, compiled: the match of its body, and how its groups become a record."""

    match: Callable[[bytes, int, int], re.Match[bytes] | None]
    record: Recorder

    @classmethod
    def of(cls, layout: Layout) -> "_Walk":
        pattern = _probe_pattern(layout) if layout.pattern is None else layout.pattern
        return cls(re.compile(pattern + rb"\n").match, _recorder(layout))


def _probe_pattern(layout: Layout) -> bytes:
    """What kernel/trace/trace_probe.c prints: an address, then ``NAME=VALUE`` for each argument."""
    address = RETURN_ADDRESS if layout.form == "return" else ADDRESS
    untrusted = [number for number, arg in enumerate(layout.args) if arg.kind in UNTRUSTED]
    if not untrusted:
        return address + b"".join(_shown(arg, b"") for arg in layout.args)
    first, last = untrusted[0], untrusted[-1]
    text = rb"[^\n]*"
    if first != last:  # none may hold what ends another
        ends = "|".join(layout.args[number + 1].name for number in untrusted[:-1]).encode()
        text = rb'(?!@)[^"}\n]*+(?:["}](?!@)[^"}\n]*+)*'.replace(b"@", rb" (?:" + ends + rb")=")
    certain = b"".join(
        _shown(arg, text + b"+" if number < last else text)
        for number, arg in enumerate(layout.args)
        if number >= first
    )
    unread = b" " + layout.args[first].name.encode() + rb'=["({][^\n]*+'
    before = b"".join(_shown(arg, b"") for arg in layout.args[:first])
    return address + before + b"(?:" + certain + b"|" + unread + b")"


def _shown(arg: Arg, text: bytes) -> bytes:
    """The pattern of one argument; ``text`` is that of an untrusted string."""
    value = VALUE_PATTERNS[arg.kind]
    return b" " + arg.name.encode() + b"=" + (value % text if arg.kind in UNTRUSTED else value)


def _recorder(layout: Layout) -> Recorder:
    slot = layout.slot
    caller = () if layout.form == "return" else (None,)  # a return's is the first group
    numbers = [
        (place, _hexadecimal(arg.bits) if arg.kind == "hex" else _number)
        for place, arg in enumerate(layout.args, VALUES)
        if arg.kind in ("int", "hex")
    ]

    def record(groups: Groups, time: int, cpu: int, tid: int, tgid: int | None) -> Record:
        made: list[Any] = [slot, time, cpu, tid, tgid, *caller, *groups]
        for place, convert in numbers:
            made[place] = convert(made[place])
        return tuple(made)

    return record


def _number(text: bytes | None) -> Value:
    if text is None or text == b"(fault)":
        return None
    return int(text, 16) if text.startswith(b"0x") else int(text)


def _hexadecimal(bits: int) -> Callable[[bytes | None], Value]:
    """Of a number that is printed in hexadecimal, signed ones by their lower ``bits``."""
    if not bits:
        return lambda text: None if text is None else int(text, 16)
    wrap, sign = 1 << bits, 1 << (bits - 1)

    def signed(text: bytes | None) -> Value:
        if text is None:
            return None
        number = int(text, 16) & (wrap - 1)
        return number - wrap if number & sign else number

    return signed
