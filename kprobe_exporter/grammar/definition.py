"""Probe definitions, the lines of kprobe_events and dynamic_events: parsed and rendered."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from kprobe_exporter.grammar.expression import FetchSite, Need
from kprobe_exporter.grammar.fetch import FetchArg, Word, check_arguments, parse_arguments
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import Node
from kprobe_exporter.grammar.lexis import NAME, fail, kernel_number, part_of, refuse_forbidden
from kprobe_exporter.grammar.place import (
    BASES,
    GROUP,
    Address,
    EventName,
    FileOffset,
    Place,
    Symbol,
    parse_event,
    parse_file_offset,
    parse_function,
    parse_plain_symbol,
    parse_symbol,
)

# Limits of kernel/trace.
LONGEST = 4094  # bytes of a line: WRITE_BUFSIZE of trace.c less the newline and the NUL
LONGEST_NAME = 63  # characters of an event's or a group's name: MAX_EVENT_NAME_LEN of trace.h less the NUL
MOST_ACTIVE = 4096  # KRETPROBE_MAXACTIVE_MAX of trace_kprobe.c


class ProbeKind(StrEnum):
    """The kinds of dynamic events that are probes; the value is the first letter of their definitions."""

    KPROBE = "p"
    UPROBE = "u"  # uprobe_events also takes p
    EPROBE = "e"
    FPROBE = "f"
    TPROBE = "t"


_NEEDS = {ProbeKind.EPROBE: Need.EPROBE, ProbeKind.FPROBE: Need.FPROBE, ProbeKind.TPROBE: Need.TPROBE}


@dataclass(frozen=True, slots=True)
class Definition:
    """One probe definition. ``dataclasses.replace`` can set the group and the event; both are checked.

    ``group`` and ``event`` are None where the kernel chooses the name. ``maxactive`` is the number of calls
    that a return probe can follow at once. Only an eprobe has a ``filter``. ``warnings`` describes the
    arguments that were translated or omitted.
    """

    kind: ProbeKind
    place: Place
    returns: bool = False
    group: str | None = None
    event: str | None = None
    maxactive: int | None = None
    args: tuple[FetchArg, ...] = ()
    filter: Node | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.group is not None:
            _check_word(GROUP, self.group, "group")
        if self.event is not None:
            _check_word(NAME, self.event, "event")
        check_arguments(self.args)

    @property
    def needs(self) -> frozenset[Need]:
        """The features of newer kernels that the kind and the arguments need."""
        kind = {_NEEDS[self.kind]} if self.kind in _NEEDS else frozenset[Need]()
        return frozenset(kind).union(*(arg.needs for arg in self.args))

    @property
    def default_event(self) -> str | None:
        """The kernel's name for an unnamed event; None at an address, as that name holds a hashed pointer."""
        match self.place:
            case Address():
                return None
            case EventName(event=event):
                return event
            case FileOffset(path=path, offset=offset):
                stem = re.split(r"[.\-_]", PurePosixPath(path).name, maxsplit=1)[0]
                return f"p_{stem}_0x{offset:x}"[:LONGEST_NAME]
        match self.kind:
            case ProbeKind.FPROBE:
                name = f"{self.place}__{'exit' if self.returns else 'entry'}"
            case ProbeKind.TPROBE:
                name = ("_" if self.place.name[:1].isdigit() else "") + self.place.name
            case _:
                symbol = str(self.place).partition("+")[0]
                name = f"{'r' if self.returns else 'p'}_{symbol}_{self.place.offset}"
        return re.sub(r"[:.]", "_", name[:LONGEST_NAME])

    def render(self) -> str:
        """The line for the kernel, without a newline, in the syntax that every kernel accepts."""
        head = str(self.kind)
        if self.kind in (ProbeKind.KPROBE, ProbeKind.UPROBE):
            head = "r" if self.returns else "p"
        if self.maxactive is not None:
            head += str(self.maxactive)
        name = (f"{self.group}/" if self.group is not None else "") + (self.event or "")
        suffix = "%return" if self.returns and self.kind is ProbeKind.FPROBE else ""
        parts = [f"{head}:{name}" if name else head, f"{self.place}{suffix}"]
        parts += [arg.render() for arg in self.args]
        if self.filter is not None:
            parts += ["if", self.filter.render()]
        line = " ".join(parts)
        refuse_forbidden(line, LONGEST)
        return line


def parse_definition(text: str) -> Definition:
    """Parse one line of kprobe_events, uprobe_events or dynamic_events; raises GrammarError.

    Every argument gets an explicit name: a parameter's own, else ``arg1`` and so on. The kernel's defaults
    differ: Linux 6.12 names an unnamed ``$arg1`` after the parameter, and older kernels name it ``arg1``.
    """
    refuse_forbidden(text, LONGEST)
    words = [Word(found[0], found.start()) for found in re.finditer(r"[^ \t]+", text)]
    if not words:
        fail("the definition is empty, write p:NAME FUNCTION", text)
    with part_of(text, words[0].column):
        kind, returns, maxactive, group, event = _parse_head(words[0].text)
    if len(words) == 1:
        fail("the place is missing, write the function after the name", text, len(text))
    if kind is ProbeKind.KPROBE and re.search(r"/.*:", words[1].text):
        kind = ProbeKind.UPROBE
    with part_of(text, words[1].column):
        place, suffixed = _parse_place(kind, words[1].text)
    returns = returns or suffixed
    arguments, condition = _split_filter(kind, words[2:], text)
    if kind is ProbeKind.FPROBE and any("$retval" in word.text for word in arguments):
        returns = True  # as in parse_symbol_and_return() of kernel/trace/trace_fprobe.c
    if maxactive is not None and (kind is ProbeKind.UPROBE or not returns):
        sentence = "only a kernel return probe has a number here (MAXACTIVE), take it out"
        fail(sentence, text, words[0].column + 1)
    if returns and isinstance(place, Symbol) and place.offset and place.name not in BASES:
        fail("a function returns as a whole, take the offset out", text, text.index("+", words[1].column))
    args, warnings = parse_arguments(arguments, _site(kind, place, returns), text)
    result = Definition(kind, place, returns, group, event, maxactive, args, condition, warnings)
    with part_of(text, 0):
        result.render()
    return result


def _parse_head(text: str) -> tuple[ProbeKind, bool, int | None, str | None, str | None]:
    """Parse ``LETTER[MAXACTIVE][:[GROUP/][EVENT]]`` to the kind, whether it returns, and the three others.

    Refuses ``probe:x``, which the kernel takes for ``p:x``.
    """
    letter, rest = text[0], text[1:]
    digits, colon, name = rest.partition(":")
    if letter in "-!":
        fail("this deletes a probe, a definition makes one", text)
    if letter not in "prfet":
        fail("a definition begins with p for an entry or r for a return", text)
    maxactive = _parse_maxactive(text, digits) if digits else None
    kind = ProbeKind.KPROBE if letter in "pr" else ProbeKind(letter)
    if not colon:
        return kind, letter == "r", maxactive, None, None
    if not name:
        fail("the event's name is missing after ':'", text, len(text))
    group, separator, event = name.rpartition("/" if "/" in name else ".")
    start = len(text) - len(name)
    if separator:
        with part_of(text, start):
            _check_word(GROUP, group, "group")
    if event:
        with part_of(text, len(text) - len(event)):
            _check_word(NAME, event, "event")
    return kind, letter == "r", maxactive, group if separator else None, event or None


def _parse_maxactive(text: str, digits: str) -> int:
    if not digits[0].isdigit():
        fail(f"after {text[0]!r} comes ':' and the event's name, not {digits!r}", text, 1)
    if text[0] not in "rf":
        fail("only a return probe has a number here (MAXACTIVE), take it out", text, 1)
    maxactive = kernel_number(digits, 1, MOST_ACTIVE)
    if maxactive is None:
        fail(f"MAXACTIVE is a number from 1 to {MOST_ACTIVE}, not {digits!r}", text, 1)
    return maxactive


def _check_word(pattern: re.Pattern[str], name: str, what: str) -> None:
    """Refuse the names that traceprobe_parse_event_name() refuses."""
    if not pattern.fullmatch(name):
        found = pattern.match(name)
        end = found.end() if found else 0
        fail(f"{name!r} is no {what} name, use letters, digits and _, with no digit first", name, end)
    if len(name) > LONGEST_NAME:
        fail(f"{what} names can have {LONGEST_NAME} characters, shorten it", name, LONGEST_NAME)


def _parse_place(kind: ProbeKind, text: str) -> tuple[Place, bool]:
    match kind:
        case ProbeKind.KPROBE:
            return parse_symbol(text)
        case ProbeKind.UPROBE:
            return parse_file_offset(text)
        case ProbeKind.FPROBE:
            name, returns = parse_function(text)
            return parse_plain_symbol(name), returns
        case ProbeKind.TPROBE:
            if not re.fullmatch(r"[A-Za-z0-9_]+", text):
                fail(f"{text!r} is not a tracepoint, write its name without the system", text)
            return Symbol(text), False
        case ProbeKind.EPROBE:
            event = parse_event(text)
            _check_word(GROUP, event.system, "system")
            with part_of(text, len(event.system) + 1):
                _check_word(NAME, event.event, "event")
            return event, False


_SITES = {
    ProbeKind.KPROBE: "kernel",
    ProbeKind.UPROBE: "user",
    ProbeKind.EPROBE: "event",
    ProbeKind.FPROBE: "function",
    ProbeKind.TPROBE: "function",
}


def _site(kind: ProbeKind, place: Place, returns: bool) -> FetchSite:
    """Return the site of a probe. At an address it has neither arguments nor a return value.

    An offset of 4 bytes is still an entry: it skips the endbr64 of x86-64 (arch_adjust_kprobe_addr()).
    """
    entry = not isinstance(place, Address)
    if isinstance(place, Symbol) and not returns:
        entry = place.offset in (0, 4) or place.name in BASES
    return FetchSite(_SITES[kind], returns and entry, entry)  # type: ignore[arg-type]


def _split_filter(kind: ProbeKind, words: list[Word], text: str) -> tuple[list[Word], Node | None]:
    """Split off the filter after ``if``, whose words the kernel joins with single spaces."""
    at = next((i for i, word in enumerate(words) if word.text == "if"), None)
    if at is None or kind is not ProbeKind.EPROBE:
        return words, None
    start = words[at].column + 2
    with part_of(text, start):
        condition = parse_filter(text[start:])
    for part in condition.comparisons:
        if isinstance(part.value, str) and re.search(r"  |\t", part.value):
            fail("the kernel would shorten the blanks in this string", text, start + part.column)
    return words[:at], condition
