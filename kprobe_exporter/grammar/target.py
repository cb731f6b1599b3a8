"""Attach strings of the configuration, ``kprobe:SYM+OFF`` and the like, parsed and written back."""

import re
from dataclasses import dataclass
from enum import StrEnum

from kprobe_exporter.grammar.lexis import (
    MODULE,
    SYMBOL,
    closest,
    fail,
    kernel_number,
    part_of,
    refuse_forbidden,
)


class Kind(StrEnum):
    """What can be attached to, by bpftrace's names."""

    KPROBE = "kprobe"
    KRETPROBE = "kretprobe"
    UPROBE = "uprobe"
    URETPROBE = "uretprobe"
    TRACEPOINT = "tracepoint"
    FENTRY = "fentry"
    FEXIT = "fexit"
    CALL = "call"
    UCALL = "ucall"
    SYSCALL = "syscall"


SUPPORTED = frozenset({Kind.KPROBE, Kind.KRETPROBE, Kind.TRACEPOINT})
"""The kinds that this version does; the others are only recognised."""

LONGEST = 1024

_SHORT = {
    "k": Kind.KPROBE,
    "p": Kind.KPROBE,
    "kr": Kind.KRETPROBE,
    "r": Kind.KRETPROBE,
    "t": Kind.TRACEPOINT,
    "tp": Kind.TRACEPOINT,
}

_TRACE_NAME = re.compile(r"[A-Za-z0-9_-]+")  # "9p" and "hda_intel" are systems of the kernel


@dataclass(frozen=True, slots=True)
class Target:
    """What one attach string names; ``str()`` gives the canonical string back.

    A probe on a function has ``symbol``, perhaps ``module`` (empty for the kernel itself) and
    ``offset`` in bytes; a tracepoint has ``system`` and ``event``.
    """

    kind: Kind
    module: str = ""
    symbol: str = ""
    offset: int = 0
    system: str = ""
    event: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.TRACEPOINT:
            return f"{self.kind}:{self.system}:{self.event}"
        module = f"{self.module}:" if self.module else ""
        offset = f"+{self.offset}" if self.offset else ""
        return f"{self.kind}:{module}{self.symbol}{offset}"


def parse_target(text: str) -> Target:
    """Parse an attach string; raises GrammarError.

    ``kprobe:[MOD:]SYM[+OFF]``, ``kretprobe:[MOD:]SYM`` or ``tracepoint:SYSTEM:EVENT``.
    """
    refuse_forbidden(text, LONGEST)
    word, colon, rest = text.partition(":")
    if not colon:
        fail(f"{text!r} names no kind, write it as KIND:NAME, such as kprobe:vfs_read", text)
    kind = _kind(word, text)
    with part_of(text, len(word) + 1):
        _refuse_pattern(rest)
        if kind is Kind.TRACEPOINT:
            return _tracepoint(rest)
        return _function(kind, rest)


def _kind(word: str, text: str) -> Kind:
    try:
        kind = Kind(word)
    except ValueError:
        if meant := _SHORT.get(word):
            fail(f"unknown kind {word!r}, write {meant!s}", text)
        near = closest(word, Kind) or f", there are {', '.join(Kind)}"
        fail(f"unknown kind {word!r}{near}", text)
    if kind not in SUPPORTED:
        known = ", ".join(kind for kind in Kind if kind in SUPPORTED)
        fail(f"this version does not do {kind!s} probes yet, only {known}", text)
    return kind


def _refuse_pattern(text: str) -> None:
    if found := re.search(r"[*?\[\]{}]", text):
        fail("patterns are not done yet, name one function or tracepoint", text, found.start())


def _tracepoint(text: str) -> Target:
    system, colon, event = text.partition(":")
    if not colon:
        slashed = text.replace("/", ":", 1)
        hint = f"tracepoint:{slashed}" if "/" in text else "tracepoint:SYSTEM:EVENT"
        fail(f"a tracepoint is named by its system and its event, write {hint}", text, len(text))
    _whole(_TRACE_NAME, system, "tracepoint system")
    with part_of(text, len(system) + 1):
        _whole(_TRACE_NAME, event, "tracepoint event")
    return Target(Kind.TRACEPOINT, system=system, event=event)


def _function(kind: Kind, text: str) -> Target:
    module, colon, rest = text.rpartition(":")
    symbol, plus, offset = rest.partition("+")
    start = len(module) + len(colon)
    if colon:
        _whole(MODULE, module, "module")
    with part_of(text, start):
        _whole(SYMBOL, symbol, "function")
    if not plus:
        return Target(kind, module, symbol)
    start += len(symbol) + 1
    if kind is Kind.KRETPROBE:
        fail("a return has no offset, take it out or write kprobe", text, start - 1)
    value = kernel_number(offset, 0, 2**32 - 1)
    if value is None:
        fail(f"{offset!r} is no offset in bytes, write a number such as 16 or 0x10", text, start)
    return Target(kind, module, symbol, value)


def _whole(pattern: re.Pattern[str], name: str, what: str) -> None:
    """Refuse a ``name`` that is not all of ``pattern``, at the first character that is not."""
    found = pattern.match(name)
    end = found.end() if found else 0
    if not name:
        fail(f"the name of the {what} is missing", name)
    if end < len(name):
        fail(f"a {what}'s name cannot have {name[end]!r} here", name, end)
