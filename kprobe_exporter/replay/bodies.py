"""Reads the text after the prefix of an event's line, without knowing the event's definition.

It knows every form that kernels have printed since 2.6.33, and the one before that:

    ev: (vfs_read+0x0/0x1a0) a=1 b="x"             probes, trace_probe.c
    ev: (ksys_read+0x75/0x100 <- vfs_read) ret=0x1
    ev: (sys.event) a=1                            eprobes, trace_eprobe.c
    sys_open(filename: 7ffd.., flags: 8000)        system calls, trace_syscalls.c
    sys_open -> 0x3
    ev: anything, perhaps with a=1                 tracepoints, and synthetic events
    do_sys_open+0x0/0xd6: dfd=3                    probes before they had names
"""

import re
from itertools import takewhile
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.model.records import COMMON_COMM
from kprobe_exporter.model.values import Arg, Value

MAX_ARGS = 128
"""MAX_TRACE_ARGS of kernel/trace/trace_probe.h."""

TEXT = "text"
"""The name of the argument that holds the whole text of a tracepoint."""

NAME = rb"[A-Za-z_]\w{0,127}+"
SYMBOL_LENGTH = rb"{1,511}+"
"""KSYM_NAME_LEN of include/linux/kallsyms.h. Names are stored, so they are bounded; values are not."""

EVENT_NAME = rb"(?!0x)\d{0,127}+" + NAME
"""A tracepoint's name may begin with a digit, as ``9p_client_req``. An address is that of trace_printk()."""

EVENT = re.compile(rb"(" + EVENT_NAME + rb")(: |:\Z|\(| -> )")
PLACE = rb"0x[0-9a-f]+/0x[0-9a-f]+(?: \[[^\]\s]+\])?"
ADDRESS = re.compile(
    rb"\((?:(?P<event>" + EVENT_NAME + rb"\." + EVENT_NAME + rb")"
    rb"|(?P<back>(?>(?:[^()\n<]|<(?!- ))+))<- (?P<function>[^()\s]" + SYMBOL_LENGTH + rb")[^()\n]*+"
    rb"|(?P<symbol>[^()\s+]" + SYMBOL_LENGTH + rb")\+" + PLACE + rb"[^()\n]*+"
    rb"|0x[0-9a-f]++[^()\n]*+)\)(?= |\Z)"
)
NAMELESS = re.compile(
    rb"(?P<symbol>[^\s:+]" + SYMBOL_LENGTH + rb")\+" + PLACE + rb"(?: <- "
    rb"(?P<function>[^\s:+]" + SYMBOL_LENGTH + rb")(?: \[[^\]\s]+\])?)?:(?= |\Z)"
)
CALLER = re.compile(rb"[^\s+\[]+")

NEXT = rb"(?= |\Z)"
STRING = rb'"((?>(?:[^"\n]|"(?!\Z| ' + NAME + rb"=))*))\"" + NEXT
TEXTS = rb'(\{(?:"|\(fault\)).*?\})(?=\Z| ' + NAME + rb"=)"
ARRAY = rb"\{(?>(?:'.'|[^'\"{}\n])*)\}"
PLAIN = rb"((?:'.'|" + ARRAY + rb"|[^\s\"{][^\s\"]*+)(?: \[[^\]\s=]+\])?)" + NEXT
ARGUMENT = re.compile(rb" (" + NAME + rb")=(?:" + STRING + rb"|" + TEXTS + rb"|" + PLAIN + rb")")
STRING_STARTS = re.compile(rb" " + NAME + rb'=["{]')
HEX_ARGUMENT = re.compile(rb" ([^\s=]{1,128}+)=([0-9a-f]{1,16})" + NEXT)

FIELD = re.compile(rb"(?:\A| )(" + NAME + rb")=")
PARAMETER = re.compile(rb"(?:\A|, )(" + NAME + rb"): ")

HEX = re.compile(rb"0x[0-9a-f]{1,16}")
BARE_HEX = re.compile(rb"(?:0x)?[0-9a-f]{1,16}")
DECIMAL = re.compile(rb"-?[0-9]{1,20}")


Argument: TypeAlias = tuple[Arg, Value]
"""One value, under the name that the text gives it."""

Form: TypeAlias = Literal["entry", "return", "eprobe", "tracepoint"]


class Head(NamedTuple):
    """The start of an event's text, where its arguments start, and how they are written."""

    event: str
    form: Form
    symbol: str
    caller: bytes | None
    arguments: Literal["probe", "hex", "parameters", "value", "text", "none"]
    at: int


def read_head(text: bytes) -> Head | None:
    """Return which event this is; None if the text is not an event."""
    if nameless := NAMELESS.match(text):
        return _nameless(nameless)
    named = EVENT.match(text)
    if named is None:
        return None
    event, at = named[1].decode(), named.end()
    if named[2] in (b"(", b" -> "):
        returns = named[2] == b" -> "
        if event.startswith("sys_"):  # the text names the function instead of the tracepoint
            event = ("sys_exit_" if returns else "sys_enter_") + event.removeprefix("sys_")
        return Head(event, "tracepoint", event, None, "value" if returns else "parameters", at)
    if found := ADDRESS.match(text, at):
        return _probe(event, found)
    if text.startswith(b"(", at) and b")" not in text:  # cut within the address
        return Head(event, "return" if b" <- " in text else "entry", event, None, "none", at)
    return Head(event, "tracepoint", event, None, "text", at)


def _nameless(found: re.Match[bytes]) -> Head:
    symbol = found["symbol"].decode(errors="replace")
    if found["function"] is None:
        return Head(symbol, "entry", symbol, None, "hex", found.end())
    function = found["function"].decode(errors="replace")
    return Head(function, "return", function, found["symbol"], "hex", found.end())


def _probe(event: str, found: re.Match[bytes]) -> Head:
    if found["event"]:
        symbol = found["event"].partition(b".")[2].decode()
        return Head(event, "eprobe", symbol, None, "probe", found.end())
    if found["function"]:
        caller = CALLER.match(found["back"])
        function = found["function"].decode(errors="replace")
        return Head(event, "return", function, caller[0] if caller else None, "probe", found.end())
    symbol = found["symbol"].decode(errors="replace") if found["symbol"] else event
    return Head(event, "entry", symbol, None, "probe", found.end())


def read_arguments(text: bytes, head: Head, decimal: bool) -> tuple[list[Argument], bool]:
    """Return the arguments, and whether the text ends within one; then only those before it are returned.

    ``decimal``: the kernel that wrote this prints decimal numbers as digits alone.
    """
    if head.arguments == "probe":
        found, cut = _probe_arguments(text, head.at, decimal)
        return [_of_eprobe(one) for one in found] if head.form == "eprobe" else found, cut
    if head.arguments == "hex":
        return _hex_arguments(text, head.at)
    if head.arguments == "parameters":
        return _parameters(text[head.at :])
    if head.arguments == "value":
        whole = HEX.fullmatch(text, head.at)
        return ([(Arg("ret", "bare"), int(whole[0], 16))], False) if whole else ([], True)
    if head.arguments == "text":
        return _fields(text[head.at :]), False
    return [], True


def number(token: bytes | None, decimal: bool) -> Value:
    """Return a value as a number if it can only be this number, else as text; None for ``(fault)``.

    Before 3.14, ``10`` may be 0x10; before 4.9, only signed types print decimals. A minus sign is always that
    of a signed type.
    """
    if token is None or token == b"(fault)":
        return None
    if HEX.fullmatch(token):
        return int(token, 16)
    if DECIMAL.fullmatch(token) and (decimal or token.startswith(b"-")):
        return int(token)
    return token


def _probe_arguments(text: bytes, at: int, decimal: bool) -> tuple[list[Argument], bool]:
    found: list[Argument] = []
    names: set[bytes] = set()
    while len(found) < MAX_ARGS and (match := ARGUMENT.match(text, at)):
        name, string, strings, plain = match.groups()
        if name in names:  # the kernel refuses such a definition: this text is part of a string
            return _trusted(found), True
        names.add(name)
        at = match.end()
        if string is not None:
            found.append((Arg(name.decode(), "str"), string))
        elif strings is not None:
            found.append((Arg(name.decode(), "texts"), strings))
        else:
            arg = Arg(name.decode(), "str" if plain == b"(fault)" else "bare")
            found.append((arg, number(plain, decimal)))
    if STRING_STARTS.match(text, at):  # cut in a string; one before it may hold what looks like its start
        return _trusted(found), True
    return found, bool(text[at:].strip())


def _of_eprobe(argument: Argument) -> Argument:
    """Return the thread's name under our name: the agent records it so beside the event's own ``comm``."""
    arg, value = argument
    return (arg._replace(name=COMMON_COMM, field=arg.name), value) if arg.name == "COMM" else argument


def _trusted(arguments: list[Argument]) -> list[Argument]:
    """Return the arguments before the first string."""
    return list(takewhile(lambda argument: argument[0].kind == "bare", arguments))


def _hex_arguments(text: bytes, at: int) -> tuple[list[Argument], bool]:
    """Return the arguments of a nameless event, which are all printed with ``%lx``."""
    found: list[Argument] = []
    while len(found) < MAX_ARGS and (match := HEX_ARGUMENT.match(text, at)):
        at = match.end()
        found.append((Arg(match[1].decode(errors="replace"), "bare"), int(match[2], 16)))
    return found, bool(text[at:].strip())


def _parameters(text: bytes) -> tuple[list[Argument], bool]:
    """Read a system call: print_syscall_enter() prints ``%lx``, on newer kernels with a string after it."""
    whole = text.rstrip().endswith(b")")
    text = text.rstrip().removesuffix(b")")
    named = _named(text, PARAMETER)
    arguments = [
        (Arg(name, "bare"), int(value, 16) if value and BARE_HEX.fullmatch(value) else value)
        for name, value in (named if whole else named[:-1])
    ]
    return arguments, not whole


def _fields(text: bytes) -> list[Argument]:
    """Return the text of a tracepoint, and its parts of the form ``name=value``, each up to the next one.

    A value with a blank in it is None: only the print fmt says how much of it is the value.
    """
    fields = [
        # A ``comm`` is the event's own.
        (
            Arg(name, "bare", field="comm" if name == "comm" else ""),
            None if value is None or b" " in value else number(value, decimal=False),
        )
        for name, value in _named(text, FIELD)
        if name != TEXT
    ]
    return [(Arg(TEXT, "bare"), text), *fields]


def _named(text: bytes, pattern: re.Pattern[bytes]) -> list[tuple[str, bytes | None]]:
    """Return the text between each name and the next; None for a name that occurs twice."""
    found: dict[str, bytes | None] = {}
    matches = list(pattern.finditer(text))[:MAX_ARGS]
    ends = [match.start() for match in matches[1:]] + [len(text)]
    for match, end in zip(matches, ends, strict=False):  # without a match, there is only the last end
        name = match[1].decode()
        found[name] = None if name in found else text[match.end() : end].rstrip()
    return list(found.items())
