"""The place where a definition attaches: a symbol, an address, an offset in a file, or an event."""

import re
from typing import NamedTuple, TypeAlias

from kprobe_exporter.grammar.lexis import MODULE, SYMBOL, fail, kernel_number, part_of


class Symbol(NamedTuple):
    """``[MODULE:]NAME[+OFFSET]``, the offset in bytes: a function, or a tprobe's tracepoint."""

    name: str
    module: str = ""
    offset: int = 0

    def __str__(self) -> str:
        module = f"{self.module}:" if self.module else ""
        return f"{module}{self.name}" + (f"+{self.offset}" if self.offset else "")


class Address(NamedTuple):
    """An address in the kernel."""

    value: int

    def __str__(self) -> str:
        return f"0x{self.value:x}"


class FileOffset(NamedTuple):
    """``PATH:OFFSET[(REFCTR)]``: an instruction in a file, and the offset of its reference counter."""

    path: str
    offset: int
    ref_counter: int | None = None

    def __str__(self) -> str:
        counter = "" if self.ref_counter is None else f"(0x{self.ref_counter:x})"
        return f"{self.path}:0x{self.offset:x}{counter}"


class EventName(NamedTuple):
    """``SYSTEM.EVENT``: a tracepoint or another event."""

    system: str
    event: str

    def __str__(self) -> str:
        return f"{self.system}.{self.event}"


Place: TypeAlias = Symbol | Address | FileOffset | EventName

GROUP = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*")
"""Names of groups and systems: is_good_system_name() of kernel/trace/trace.h."""

BASES = frozenset({"_text", "_stext"})
"""Symbols that serve as the base of an offset where a function's name is ambiguous."""


def parse_symbol(text: str) -> tuple[Symbol | Address, bool]:
    """Parse ``[MOD:]SYM[+OFF][%return]`` or an address; return the place and whether it is a return."""
    value = kernel_number(text)
    if value is not None:
        return Address(value), False
    place, returns = parse_function(text)
    found = re.search(r"[+-]", place)
    if not found:
        return parse_plain_symbol(place), returns
    start = found.end()
    offset = kernel_number(place[start:], 0, 2**32 - 1)
    if found[0] == "-" or offset is None:
        fail("after a symbol can only come +OFFSET, such as +16 or +0x10", text, start - 1)
    return parse_plain_symbol(place[: start - 1], offset), returns


def parse_function(text: str) -> tuple[str, bool]:
    """Remove ``%return``; return the rest and whether the suffix was there."""
    place, percent, suffix = text.partition("%")
    if percent and suffix != "return":
        fail(f"after the place can only come %return, not %{suffix}", text, len(place))
    return place, bool(percent)


def parse_plain_symbol(text: str, offset: int = 0) -> Symbol:
    """Parse ``[MOD:]SYM``, to be probed at the ``offset``; raises GrammarError."""
    module, colon, name = text.rpartition(":")
    if colon and not MODULE.fullmatch(module):
        fail(f"{module!r} is not a module's name, write it as lsmod does", text)
    with part_of(text, len(module) + len(colon)):
        found = SYMBOL.match(name)
        end = found.end() if found else 0
        if not name:
            fail("the symbol is missing, write the function's name", name)
        if end < len(name):
            fail(f"a symbol cannot have {name[end]!r} here", name, end)
    return Symbol(name, module, offset)


_FILE = re.compile(r"(?P<path>/.*):(?P<offset>[^:%(]*)(?P<suffix>%[^(]*)?(?P<counter>\(.*)?")


def parse_file_offset(text: str) -> tuple[FileOffset, bool]:
    """Parse ``PATH:OFF[%return][(REFCTR)]`` and say whether it is a return; raises GrammarError."""
    found = _FILE.fullmatch(text)
    if not found:
        fail("a place in a file is written as /PATH:OFFSET", text)
    offset = kernel_number(found["offset"])
    if offset is None:
        fail(f"{found['offset']!r} is not an offset in a file", text, found.start("offset"))
    if found["suffix"] not in (None, "%return"):
        fail("after the offset can only come %return", text, found.start("suffix"))
    counter, end = None, found["counter"]
    if end is not None:
        counter = kernel_number(end[1:-1])
        if counter is None or not end.endswith(")"):
            fail("a reference counter is written as (OFFSET)", text, found.start("counter"))
    return FileOffset(found["path"], offset, counter), found["suffix"] is not None


def parse_event(text: str) -> EventName:
    """Parse ``SYSTEM/EVENT`` or ``SYSTEM.EVENT``; raises GrammarError."""
    system, separator, event = text.partition("/" if "/" in text else ".")
    if not separator or not event:
        fail("an event is named as SYSTEM/EVENT", text, len(text))
    return EventName(system, event)
