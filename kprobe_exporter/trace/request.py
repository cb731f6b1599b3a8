"""Parses the argument of ``trace``: a definition, perf-tools' short form, or an attach string. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import (
    LONGEST_NAME,
    MOST_ACTIVE,
    Definition,
    ProbeKind,
    parse_definition,
)
from kprobe_exporter.grammar.lexis import kernel_number
from kprobe_exporter.grammar.place import EventName, Place, Symbol
from kprobe_exporter.grammar.target import SONAME, Kind, Target, names_library, parse_target, split_file

HEAD = re.compile(r"(?P<verb>[pr]\d*|f\d*|e|t)(?::(?P<name>.*))?")
"""The first word of a definition."""

SHORT = re.compile(r"(?P<verb>[pr]\d*):(?P<place>.+)")
"""The first word of perf-tools' short form, in which the function also names the event."""

ACTIVE = re.compile(r"(?P<verb>[prf])(?P<number>[0-9]{1,20})")
"""A letter with a MAXACTIVE. The tracepoint system r8169 has the same form."""

ARGUMENT = re.compile(r"[%$@+\\-]|[A-Za-z_]\w*=")
"""The beginning of an argument; no place begins like this."""

EVENT = re.compile(r"[A-Za-z0-9_-]+:[A-Za-z0-9_-]+")
"""``SYSTEM:EVENT``, the form that perf-tools' tpoint takes."""

NAMES = re.compile(r"[A-Za-z0-9_.$*?\[][A-Za-z0-9_.$+*?\[\]!-]*")
"""A function, a tracepoint, or a shell pattern over them."""

IN_FILE = re.compile(rf"(?P<path>/.*|{SONAME.pattern}):(?P<symbol>[^:%(]+)(?P<suffix>%return)?")

_RECEIVER = re.compile(r"\(\*(\w+)\)")
"""A receiver in Go: net/http.(*Server).Serve."""


PARAMETER = re.compile(r"(?P<name>[A-Za-z_]\w*)(:\w+(\[\d+\])?)?")
"""An argument that begins with the name of a parameter or of a system call's field."""

ATTACHED = frozenset(Kind) - {Kind.PAIR}

_HEADS = {
    Kind.KPROBE: "p",
    Kind.KRETPROBE: "r",
    Kind.UPROBE: "p",
    Kind.URETPROBE: "r",
    Kind.FENTRY: "f",
    Kind.FEXIT: "f",
    Kind.TRACEPOINT: "e",
}


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request to trace, under ``name``.

    ``definition`` is the kernel's line. It is None for a tracepoint without arguments, a call, a pattern and
    a USDT probe, which ``target`` names. ``fetch`` are the arguments of these two by name. In a definition,
    ``target`` is a place in a file, given by a function's name or in a library given by its soname; the
    definition does not have the offset yet.
    """

    name: str
    definition: Definition | None
    target: Target | None = None
    fetch: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """The description of the trace, as in ``Tracing …``."""
        if self.definition is None:
            return str(self.target).removeprefix(f"{Kind.TRACEPOINT}:")
        if self.definition.kind is ProbeKind.UPROBE:
            return f"uprobe {self.name} ({self.definition.render()})"
        what = {ProbeKind.EPROBE: "tracepoint", ProbeKind.TPROBE: "tracepoint", ProbeKind.FPROBE: "fprobe"}
        return f"{what.get(self.definition.kind, 'kprobe')} {self.name}"

    @property
    def is_call(self) -> bool:
        """Whether it is one function or system call with its entry and its return."""
        return self.target is not None and self.target.is_call and not self.target.is_pattern

    @property
    def in_program(self) -> bool:
        """Whether it is a place in a program or a library."""
        by_definition = self.definition is not None and self.definition.kind is ProbeKind.UPROBE
        return by_definition or (self.target is not None and self.target.kind.in_file)

    @property
    def function(self) -> Target | None:
        """The kernel function to trace; None if it is not one kernel function given by name."""
        if self.definition is None:
            assert self.target is not None
            known = self.target.kind is Kind.CALL and not self.target.is_pattern
            return self.target if known else None
        place = self.definition.place
        if self.definition.kind not in (ProbeKind.KPROBE, ProbeKind.FPROBE) or not isinstance(place, Symbol):
            return None
        kinds = (Kind.KPROBE, Kind.KRETPROBE)
        if self.definition.kind is ProbeKind.FPROBE:
            kinds = (Kind.FENTRY, Kind.FEXIT)
        return Target(kinds[self.definition.returns], place.module, place.name, place.offset)

    def at(self, place: Place) -> "TraceRequest":
        """Return a copy whose definition attaches at ``place``."""
        assert self.definition is not None
        return replace(self, definition=replace(self.definition, place=place))


def parse_request(text: str) -> TraceRequest:
    """Parse DEFINITION of the command line; raises GrammarError.

    ``p:do_sys_openat2`` is short for ``p:do_sys_openat2 do_sys_openat2``; arguments may follow. The place
    may be a function of a file by name, ``p:/bin/bash:readline``. ``KIND:TARGET [ARGUMENTS]`` uses an
    attach string, and ``SYSTEM:EVENT`` is short for ``tracepoint:SYSTEM:EVENT``.
    """
    words = text.split()
    if not words:
        raise GrammarError("there is nothing to trace, write a definition such as p:do_sys_openat2", text)
    kind = words[0].partition(":")[0]
    if kind in ATTACHED:
        # A name in C++ may have blanks.
        end = next((number for number, word in enumerate(words[1:], 1) if ARGUMENT.match(word)), len(words))
        end = end if Kind(kind).in_file and "(" in words[0] else 1
        return _attached(parse_target(" ".join(words[:end])), words[end:])
    if EVENT.fullmatch(words[0]) and not HEAD.fullmatch(kind):
        return _attached(parse_target(f"tracepoint:{words[0]}"), words[1:])
    if instead := _instead_of(words[0]):
        raise GrammarError(instead, words[0])
    return _defined(_with_place(words))


def event_name(place: str) -> str:
    """Return an event name for a place as written: the function's name, made valid for the kernel."""
    path, _, name = split_file(place.removesuffix("%return"))
    if path.startswith("/") and kernel_number(name) is not None:
        name = f"{path.rpartition('/')[2]}_{name}"
    name = _RECEIVER.sub(r"\1", name)
    name = name.partition("(")[0] or name
    name = re.sub(r"\W", "_", name.partition("@")[0], flags=re.ASCII)
    return f"{'_' if name[:1].isdigit() else ''}{name}"[:LONGEST_NAME]


def _instead_of(word: str) -> str:
    """Return advice for a bare name or pattern in place of a definition; "" for other words."""
    owner, colon, name = word.rpartition(":")
    begins = "a definition begins with p for an entry or r for a return, write"
    if word.startswith("/"):
        return f"{begins} p:{word if colon else f'{word}:FUNCTION'}"
    if word.startswith(":") or not NAMES.fullmatch(name):
        return ""
    several = re.search(r"[*?\[]", name) is not None
    if HEAD.fullmatch(owner or word):
        return _instead_of_headed(word, owner, several)
    if owner:
        return f"{begins} tracepoint:{word}, or kprobe:{word} for functions of a module"
    return f"{begins} {'kprobe' if several else 'p'}:{word}"


def _instead_of_headed(word: str, head: str, several: bool) -> str:
    """The same for a word that begins like a definition, such as an event of the system r8169."""
    active = ACTIVE.fullmatch(head)
    if active and (active["verb"] == "p" or int(active["number"]) > MOST_ACTIVE):
        return (
            f"only a return probe has a number here, {MOST_ACTIVE} at most (MAXACTIVE), and a tracepoint is"
            f" written tracepoint:{word}"
        )
    short = SHORT.fullmatch(word)
    if several and short:
        kind = Kind.KPROBE if short["verb"] == "p" else Kind.KRETPROBE
        return f"a definition names one function, for a pattern write {kind}:{short['place']}"
    return ""


def _with_place(words: list[str]) -> list[str]:
    """Add the place that perf-tools' short form omits, because the event's name is the function."""
    found = SHORT.fullmatch(words[0])
    if not found or (len(words) > 1 and not ARGUMENT.match(words[1])):
        return words
    place = found["place"]
    if not place.startswith("/"):
        place = place.rpartition("/")[2]
    return [f"{found['verb']}:{event_name(place)}", place, *words[1:]]


def _defined(words: Sequence[str]) -> TraceRequest:
    """Parse a definition; its place may be a function of a file, given by name."""
    target = None
    in_file = IN_FILE.fullmatch(words[1]) if len(words) > 1 else None
    by_soname = in_file is not None and names_library(in_file["path"])
    if in_file and (by_soname or kernel_number(in_file["symbol"]) is None) and words[0][0] in "pr":
        kind = Kind.URETPROBE if words[0][0] == "r" or in_file["suffix"] else Kind.UPROBE
        target = parse_target(f"{kind}:{in_file['path']}:{in_file['symbol']}")
        words = [words[0], f"{_unplaced(target)}{in_file['suffix'] or ''}", *words[2:]]
    return _of_definition(words, target)


def _unplaced(target: Target) -> str:
    """Return the place of a function of a file in a definition; ``resolve`` puts in what is missing here.

    The grammar of definitions takes paths and offsets alone, no libraries' names.
    """
    return f"{'' if target.path.startswith('/') else '/'}{target.path}:0x0"


def _of_definition(words: Sequence[str], target: Target | None) -> TraceRequest:
    definition = parse_definition(" ".join(words))
    name = definition.event or definition.default_event or event_name(f"p_{definition.place}")
    if target is not None and definition.event is None:
        name = event_name(target.symbol)
    return TraceRequest(name, replace(definition, group=None, event=name), target)


def _attached(target: Target, arguments: list[str]) -> TraceRequest:
    """Make a request of an attach string and the fetch arguments that follow it."""
    target = target.halves[0] if target.is_entry_alone else target
    name = event_name(target.event or (f"{target.path}:" if target.path else "") + target.symbol)
    name = name.strip("_") or "every" if target.is_pattern else name
    if target.path and not target.symbol:
        name = event_name(f"{target.path}:{target.offset:#x}")
    if target.is_pattern and arguments:
        raise GrammarError("a pattern takes no arguments here, name one event", " ".join(arguments))
    bare = target.kind is Kind.TRACEPOINT and not arguments
    if target.is_pattern or target.is_call or target.kind is Kind.USDT or bare:
        return TraceRequest(name, None, target, tuple(map(_fetched, arguments, range(1, len(arguments) + 1))))
    if target.kind.in_file and target.symbol:
        words = [f"{_HEADS[target.kind]}:{name}", _unplaced(target), *arguments]
        return _of_definition(words, target)
    suffix = "%return" if target.kind is Kind.FEXIT else ""
    if target.kind is Kind.TRACEPOINT:
        place = str(EventName(target.system, target.event))
    else:
        place = str(target).removeprefix(f"{target.kind}:")
    return _defined([f"{_HEADS[target.kind]}:{name}", f"{place}{suffix}", *arguments])


def _fetched(argument: str, number: int) -> tuple[str, str]:
    """Return the name and the expression of ``[NAME=]EXPRESSION``: of a parameter or a field its own name."""
    name, equals, expression = argument.partition("=")
    if equals:
        return name, expression
    own = PARAMETER.fullmatch(argument)
    return own["name"] if own else f"arg{number}", argument
