"""The text of one layout, compiled: its pattern, and how the pattern's groups become a record."""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from kprobe_exporter.model.records import VALUES, Layout, Record
from kprobe_exporter.model.values import Arg, ArgKind, Value, is_address, swapped, swapped_elements

ADDRESS = rb"\([^)\n]*+\)"
RETURN_ADDRESS = rb"\((?:\[unknown/kretprobe'd\]|([^\s)+]++))[^)\n<]*+<- [^)\n]*+\)"

ELEMENT = rb"""(?:'.'|[^'",{}\n]++)"""
VALUE_PATTERNS = {
    "int": rb"(0x[0-9a-f]{1,16}|-?[0-9]{1,20}|\(fault\))",
    "hex": rb"((?:0x)?[0-9a-f]{1,16})",
    "char": rb"'([^\n])'",
    "bare": rb"('.'|\{" + ELEMENT + rb"(?>(?:," + ELEMENT + rb')*)\}|[^\s"]\S*+(?>(?: \[\w++\])?))',
    "str": rb'(?:"(%s)"|\(fault\))',
    "texts": rb"(\{%s\})",
}
UNTRUSTED = ("str", "texts")
"""Kinds of arguments whose text a process controls."""

Groups: TypeAlias = tuple[bytes | None, ...]
Recorder: TypeAlias = Callable[[Groups, int, int, int, int | None], Record]


class Walk(NamedTuple):
    """The match of a body, and how its groups become a record."""

    match: Callable[[bytes, int, int], re.Match[bytes] | None]
    record: Recorder

    @classmethod
    def of(cls, layout: Layout) -> "Walk":
        pattern = _probe_pattern(layout) if layout.pattern is None else layout.pattern
        return cls(re.compile(pattern + rb"\n").match, _recorder(layout))


def text_key(layout: Layout) -> bytes:
    """Return how a line of this layout names itself: the event, or the system call's own spelling."""
    for prefix, mark in (("sys_enter_", "("), ("sys_exit_", " -> ")):
        if layout.form == "tracepoint" and layout.event.startswith(prefix):
            return f"sys_{layout.event.removeprefix(prefix)}{mark}".encode()
    return layout.event.encode() + b": "


def _probe_pattern(layout: Layout) -> bytes:
    """Return the pattern of kernel/trace/trace_probe.c: an address, then ``NAME=VALUE`` per argument."""
    address = RETURN_ADDRESS if _tells_caller(layout) else ADDRESS
    trusted, rest = arguments_pattern(layout.args)
    if not rest:
        return address + trusted
    first = next(arg for arg in layout.args if arg.kind in UNTRUSTED)
    unread = b" " + first.shown.encode() + rb'=["({][^\n]*+'
    return address + trusted + b"(?:" + rest + b"|" + unread + b")"


def _tells_caller(layout: Layout) -> bool:
    """A program's return names no caller: ``(0x40117d <- 0x401136)`` (kernel/trace/trace_uprobe.c)."""
    return layout.form == "return" and not layout.user


def arguments_pattern(args: Sequence[Arg]) -> tuple[bytes, bytes]:
    """Return the patterns of the arguments before the first untrusted string, and of the others."""
    untrusted = [number for number, arg in enumerate(args) if arg.kind in UNTRUSTED]
    if not untrusted:
        return b"".join(_shown(arg, b"") for arg in args), b""
    first, last = untrusted[0], untrusted[-1]
    text = rb"[^\n]*"
    if first != last:  # no string may hold what ends another
        ends = "|".join(args[number + 1].shown for number in untrusted[:-1]).encode()
        text = rb'(?!@)[^"}\n]*+(?:["}](?!@)[^"}\n]*+)*'.replace(b"@", rb" (?:" + ends + rb")=")
    texts = [*[b"(?>" + text + b")"] * (last - first), *[text] * (len(args) - last)]
    rest = map(_shown, args[first:], texts)
    return b"".join(_shown(arg, b"") for arg in args[:first]), b"".join(rest)


def _shown(arg: Arg, text: bytes) -> bytes:
    """Return the pattern of one argument; ``text`` is the pattern of an untrusted string."""
    value = VALUE_PATTERNS[arg.kind]
    return b" " + arg.shown.encode() + b"=" + (value % text if arg.kind in UNTRUSTED else value)


def _recorder(layout: Layout) -> Recorder:
    layout_id = layout.layout_id
    caller = () if _tells_caller(layout) else (None,)  # the caller is the first group
    numbers = [
        (place, _hexadecimal(arg.bits) if arg.kind == "hex" else _in_host_order(arg.kind, arg.network))
        for place, arg in enumerate(layout.args, VALUES)
        if arg.kind in ("int", "hex") or (arg.kind == "bare" and arg.network)
    ]
    guarded = [
        (place, [layout.place(guard) for guard in arg.guards])
        for place, arg in enumerate(layout.args, VALUES)
        if arg.guards
    ]

    def record(groups: Groups, time: int, cpu: int, tid: int, tgid: int | None) -> Record:
        made: list[Any] = [layout_id, time, cpu, tid, tgid, *caller, *groups]
        for place, convert in numbers:
            made[place] = convert(made[place])
        for place, guards in guarded:
            if not all(is_address(made[guard]) for guard in guards if guard is not None):
                made[place] = None
        return tuple(made)

    return record


def _number(text: bytes | None) -> Value:
    if text is None or text == b"(fault)":
        return None
    return int(text, 16) if text.startswith(b"0x") else int(text)


def _in_host_order(kind: ArgKind, size: int) -> Callable[[bytes | None], Value]:
    """Return the reader of numbers that are recorded in network byte order in so many bytes, 0 for others.

    An array, which is ``bare`` text, stays text.
    """
    little = sys.byteorder == "little"
    if kind == "bare":
        return lambda text: swapped_elements(text, size) if text is not None and little else text
    if not size or not little:
        return _number

    def number(text: bytes | None) -> Value:
        found = _number(text)
        return swapped(found, size) if isinstance(found, int) and 0 <= found < 1 << 8 * size else None

    return number


def _hexadecimal(bits: int) -> Callable[[bytes | None], Value]:
    """Return the reader of hexadecimal numbers; ``bits`` as in `Arg`."""
    if not bits:
        return lambda text: None if text is None else int(text, 16)
    wrap = 1 << abs(bits)
    sign = wrap >> 1 if bits > 0 else 0

    def number(text: bytes | None) -> Value:
        if text is None:
            return None
        found = int(text, 16) & (wrap - 1)
        return found - wrap if found & sign else found

    return number
