"""Parser of fetch argument expressions such as ``+8(%di)``, with the kernel's rules."""

import re
from enum import StrEnum
from typing import Literal, NamedTuple

from kprobe_exporter.grammar.lexis import (
    LONG_MAX,
    LONG_MIN,
    NAME,
    SYMBOL,
    ULONG_MAX,
    closest,
    fail,
    kernel_number,
    part_of,
)
from kprobe_exporter.grammar.members import MemberPath, is_path, parse_path


class Need(StrEnum):
    """Features of newer kernels; the value is the text in tracefs' README that announces the feature."""

    BTF = "<argname>"
    ENTRY_ARGUMENTS = "kernel return probes support: $retval, $arg<N>"
    CHAR = "char, string"
    SYMSTR = "symstr"
    DENTRY = "%pd/%pD"
    EPROBE = "e[:[<group>/]"
    FPROBE = "f[:[<group>/]"
    TPROBE = "t[:[<group>/]"


class Op(StrEnum):
    """The last fetch operation of an expression: enum fetch_op of kernel/trace/trace_probe.h."""

    REGISTER = "register"
    STACK = "stack"
    STACK_POINTER = "stack pointer"
    RETURN = "return value"
    ARGUMENT = "argument"
    ALL_ARGUMENTS = "all arguments"
    PARAMETER = "parameter by name"
    FIELD = "field of an event"
    IMMEDIATE = "number"
    TEXT = "string"
    COMM = "comm"
    MEMORY = "memory"
    USER_MEMORY = "user memory"


class FetchSite(NamedTuple):
    """The properties of a probe's location that decide what its arguments can fetch.

    ``kind`` is ``kernel`` for a kprobe, ``function`` for an fprobe or a tracepoint probe, ``user`` for a
    uprobe and ``event`` for an eprobe. ``any`` refuses only what every kind refuses. ``entry`` says that the
    function's arguments are still where they were passed, which is not so at an offset or an address.
    """

    kind: Literal["kernel", "function", "user", "event", "any"]
    returns: bool = False
    entry: bool = True


ANYWHERE = FetchSite("any")
KPROBE = FetchSite("kernel")
KRETPROBE = FetchSite("kernel", returns=True)


class Scan(NamedTuple):
    """A parsed expression in today's spelling, with its last operation and its number of fetch steps."""

    text: str
    last: Op
    steps: int = 1
    needs: frozenset[Need] = frozenset()
    warning: str | None = None


# Limits of kernel/trace.
MOST_STEPS = 15  # FETCH_INSN_MAX of trace_probe.h, less the instruction that ends the list
DEEPEST_STACK = 2048  # PARAM_MAX_STACK of trace_probe.c: THREAD_SIZE / sizeof(long) on x86-64 and arm64

_OLD = re.compile(r"a([0-9]+)|s([0-9]+)|sa|rv")
_X86 = re.compile(r"%[re]([abcd]x|[sd]i|[sb]p|ip|flags)")


def scan(text: str, site: FetchSite) -> Scan:
    """Parse an expression without its type, as parse_probe_arg() does; raises GrammarError."""
    if is_path(text) and site.kind not in ("event", "user"):
        return _path(text, site)
    return _plain(text, site)


def _plain(text: str, site: FetchSite) -> Scan:
    match text[:1]:
        case "+" | "-":
            return _memory(text, site)
        case "$":
            return _variable(text, site)
        case "%":
            return _register(text, site)
        case "@":
            return _address(text, site)
        case "\\":
            return _immediate(text)
    if not NAME.match(text):
        fail("an argument begins with $ % @ + - \\ or a parameter's name", text)
    if site.kind == "event":
        fail(f"a field of an event has a $ before it, write ${text}", text)
    return _parameter(text, site)


def _memory(text: str, site: FetchSite) -> Scan:
    """``+OFFSET(ARG)`` or ``-OFFSET(ARG)``; a ``u`` before the offset reads user memory.

    The kernel ignores text after the last ``)`` and truncates the offset to an int. This parser refuses both.
    """
    head, bracket, rest = text.partition("(")
    start = 2 if head[1:2] == "u" else 1
    if kernel_number(head[start:], 0, 2**31 - 1) is None:
        fail(f"{head[start:]!r} is not an offset, write memory as +OFFSET(ARG)", text, start)
    if not bracket:
        fail(f"the address is missing, write {head}(ARG)", text, len(head))
    if not rest.endswith(")"):
        fail("this must end with ')'", text, len(text))
    with part_of(text, len(head) + 1):
        inner = scan(rest[:-1], site)
    if inner.last in (Op.COMM, Op.TEXT, Op.ALL_ARGUMENTS):
        fail(f"{inner.text} is not an address that could be read", text, len(head) + 1)
    if inner.steps == MOST_STEPS:
        fail("this reads memory through too many addresses", text)
    last = Op.USER_MEMORY if start == 2 else Op.MEMORY
    return inner._replace(text=f"{head}({inner.text})", last=last, steps=inner.steps + 1)


_ANYWHERE = {"$comm": Op.COMM, "$COMM": Op.COMM, "$stack": Op.STACK_POINTER}
_VARIABLES = ("$retval", "$comm", "$stack", "$arg1", "$arg*")


def _variable(text: str, site: FetchSite) -> Scan:
    """Parse a ``$`` variable as parse_probe_vars() does."""
    if site.kind == "event" and text not in _ANYWHERE:
        if not NAME.fullmatch(text[1:]):
            fail(f"{text[1:]!r} cannot be the name of a field", text, 1)
        return Scan(text, Op.FIELD)
    if text.startswith("$retval"):
        return _return_value(text, site)
    if text in _ANYWHERE:
        return Scan(text, _ANYWHERE[text])
    if number := re.fullmatch(r"\$stack([0-9]+)", text):
        if int(number[1]) > DEEPEST_STACK:
            fail(f"the stack has {DEEPEST_STACK} entries", text, 6)
        return Scan(text, Op.STACK)
    if not text.startswith("$arg"):
        fail(f"there is no {text!r}{closest(text, _VARIABLES)}", text)
    needs = _entry_needs(text, site)
    if text == "$arg*":
        return Scan(text, Op.ALL_ARGUMENTS, needs=needs | {Need.BTF})
    number = re.fullmatch(r"\$arg([0-9]+)", text)
    if not number or not 1 <= int(number[1]) <= DEEPEST_STACK:
        fail("arguments count from 1, the first is $arg1, and all of them $arg*", text, 4)
    return Scan(text, Op.ARGUMENT, needs=needs)


def _return_value(text: str, site: FetchSite) -> Scan:
    if not (site.returns or site.kind == "any"):
        fail("$retval is there only when a named function returns, probe that", text)
    if text != "$retval":
        fail("after $retval can only come ->MEMBER, of a kernel function", text, 7)
    return Scan(text, Op.RETURN)


def _entry_needs(text: str, site: FetchSite) -> frozenset[Need]:
    """The needs of an argument at this site: a return probe must keep the arguments from the entry."""
    if site.kind == "user":
        fail(f"{text} is for kernel functions, read a register such as %di", text)
    if not site.entry:
        fail(f"{text} is there only at a function's first instruction", text)
    return frozenset({Need.ENTRY_ARGUMENTS} if site.returns else ())


def _register(text: str, site: FetchSite) -> Scan:
    """A register by its name in struct pt_regs. The names depend on the machine and are not checked."""
    if site.kind in ("event", "function"):
        fail("registers are not kept for this kind of probe", text)
    if not re.fullmatch(r"%[a-z][a-z0-9_]*", text):
        fail(f"{text!r} is not a register, write it as %di", text)
    if found := _X86.fullmatch(text):
        fail(f"the kernel calls {text} %{found[1]}", text)
    return Scan(text, Op.REGISTER)


def _address(text: str, site: FetchSite) -> Scan:
    """``@ADDRESS``, ``@SYMBOL+OFFSET``, or ``@+OFFSET`` in the file of a uprobe."""
    if text[1:2] == "+":
        if site.kind not in ("user", "any"):
            fail("@+OFFSET is a place in a file, for uprobes only", text)
        if kernel_number(text[2:], LONG_MIN, LONG_MAX) is None:
            fail(f"{text[2:]!r} is not an offset in a file", text, 2)
        return Scan(text, Op.MEMORY, 2)
    if text[1:2].isdigit():
        if kernel_number(text[1:]) is None:
            fail(f"{text[1:]!r} is not an address, write it as 0x…", text, 1)
        return Scan(text, Op.MEMORY, 2)
    if site.kind == "user":
        fail("the kernel does not know a program's symbols, write an address", text, 1)
    symbol = SYMBOL.match(text, 1)
    if not symbol:
        fail("after @ must come a symbol or an address", text, 1)
    offset = text[symbol.end() :]
    if offset and (offset[0] not in "+-" or kernel_number(offset[1:], 0, LONG_MAX) is None):
        fail("after a symbol can only come +OFFSET or -OFFSET", text, symbol.end())
    return Scan(text, Op.MEMORY, 3)


def _immediate(text: str) -> Scan:
    """``\\NUMBER`` and ``\\"STRING"``."""
    if text[1:2] == '"':
        if len(text) < 3 or text[-1] != '"':
            fail('a string ends with " and has no blank and no : in it', text, len(text))
        return Scan(text, Op.TEXT)
    number, highest = text[1:], ULONG_MAX
    if number[:1] == "+":
        number, highest = number[1:], LONG_MAX
    if kernel_number(number, LONG_MIN, highest) is None:
        fail(f"{text[1:]!r} is neither a number of 64 bits nor a string in double quotes", text, 1)
    return Scan(text, Op.IMMEDIATE)


def _parameter(text: str, site: FetchSite) -> Scan:
    """A parameter's name and members, which need BTF, or a spelling from before Linux 2.6.33."""
    if found := _OLD.fullmatch(text):
        if found[1]:
            today = f"$arg{int(found[1]) + 1}"  # the old spelling counts from 0
        else:
            today = f"$stack{found[2]}" if found[2] else {"sa": "$stack", "rv": "$retval"}[text]
        with part_of(text, 0):
            warning = f"{text} is the spelling of before Linux 2.6.33, read as {today}"
            return scan(today, site)._replace(warning=warning)
    if text == "ra":
        fail("ra, the return address, is the caller that each return shows, take it out", text)
    if not NAME.fullmatch(text):
        hint = "write ->MEMBER after a parameter, and .MEMBER or -> after that"
        fail(f"{text!r} names no member, {hint}", text)
    return Scan(text, Op.PARAMETER, needs=_entry_needs(text, site) | {Need.BTF})


def _path(text: str, site: FetchSite) -> Scan:
    """A path into structures, which the agent resolves. It may be one that newer kernels know, ``a->b``."""
    path = parse_path(text)
    first = path
    while isinstance(first.base, MemberPath):
        first = first.base
    if not first.cast and first.steps[0].operator == ".":
        name = first.steps[0].name
        fail(
            f"{first.base} is not a structure, but may point to one: write ->{name}",
            text,
            first.steps[0].column,
        )
    return Scan(text, Op.MEMORY, 1 + _dereferences(path), scan(path.root, site).needs | {Need.BTF})


def _dereferences(path: MemberPath) -> int:
    inner = 0 if isinstance(path.base, str) else _dereferences(path.base)
    return inner + max(1, sum(step.operator == "->" for step in path.steps))
