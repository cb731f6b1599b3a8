"""Attach strings of the configuration, such as ``kprobe:SYM+OFF``: parsed and rendered."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

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
    """Kinds of targets, by bpftrace's names; ``call``, ``ucall``, ``syscall`` are an entry and its return."""

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
    USDT = "usdt"
    PAIR = "pair"

    @property
    def is_return(self) -> bool:
        """Whether it sees only a function's return."""
        return self in (Kind.KRETPROBE, Kind.URETPROBE, Kind.FEXIT)

    @property
    def in_file(self) -> bool:
        """Whether it is a place in a program or a library, not in the kernel."""
        return self in (Kind.UPROBE, Kind.URETPROBE, Kind.UCALL, Kind.USDT)

    @property
    def on_event(self) -> bool:
        """Whether it is an event that is built into the kernel and has fields of its own."""
        return self in (Kind.TRACEPOINT, Kind.SYSCALL)


NO_RETURN = {
    **dict.fromkeys(("exit", "exit_group"), "it never returns"),
    **dict.fromkeys(("rt_sigreturn", "uprobe", "uretprobe"), "the kernel gives its return no number"),
}
"""System calls without a return event, and the reason. The latter three restore a program's registers and set
the number of the system call to -1 (arch/x86/kernel/signal_64.c and uprobes.c, forget_syscall() of
arch/arm64). The kernel writes no event for this number (kernel/trace/trace_syscalls.c). They do so on
6.18."""

NEVER_RETURN = frozenset(
    """
    __module_put_and_kthread_exit complete_and_exit cpu_startup_entry do_exit do_group_exit do_task_dead
    kthread_complete_and_exit kthread_exit make_task_dead nmi_panic_self_stop panic panic_smp_self_stop
    stop_this_cpu sys_exit sys_exit_group usercopy_abort vpanic
    """.split()
)
"""Functions of the kernel that never return, from tools/objtool/noreturns.h. BTF does not mark them."""

_ARCHITECTURE = re.compile(r"__[a-z0-9]+_(?=sys_)")
"""The prefix of a system call's name in that of its function: __x64_sys_exit."""

_HALVES = {Kind.CALL: (Kind.KPROBE, Kind.KRETPROBE), Kind.UCALL: (Kind.UPROBE, Kind.URETPROBE)}

LONGEST = 1024

SYSTEM_CALL = "sys_"
"""A function ``sys_NAME`` that does not exist stands for the function behind the system call NAME."""

SYSTEM_CALLS, SYSTEM_CALL_ENTRY = "syscalls", "sys_enter_"
"""The system of the tracepoints of system calls, and how the names of their entries begin."""

_SHORT = {
    **dict.fromkeys(("k", "p"), Kind.KPROBE),
    **dict.fromkeys(("kr", "r"), Kind.KRETPROBE),
    **dict.fromkeys(("t", "tp"), Kind.TRACEPOINT),
    "u": Kind.UPROBE,
    "ur": Kind.URETPROBE,
    **dict.fromkeys(("f", "kfunc"), Kind.FENTRY),
    **dict.fromkeys(("fr", "kretfunc"), Kind.FEXIT),
}

_TRACE_NAME = re.compile(r"[A-Za-z0-9_-]+")  # "9p" and "hda_intel" are systems of the kernel
_SYSCALL_NAME = re.compile(r"[a-z0-9_]+")
FILE_SYMBOL = re.compile(r"[A-Za-z_.$][A-Za-z0-9_.$@]*")
"""A function of a file, with or without a version: memcpy@GLIBC_2.14."""

WRITTEN_NAME = re.compile(
    r"(?=.*?(?:::|[/(<]|\[go\.|\[\.\.\.\]))[A-Za-z_$~(<{][\w.$~:<>(){}&*,/\[\]#'=!%^|@ +-]*"
)
"""A function of a file as people write it in C++ or Rust (``app::Foo::bar(int) const``), or in Go
(``net/http.(*Server).Serve``, ``main.Map[...]``)."""

INSTANCES = "<*>"
"""Stands for the template arguments of any instance in a written name: ``app::Box<*>::get``."""

_WRITTEN_OFFSET = re.compile(r"\+(?:0x[0-9a-f]+|\d+)$")
_SINGLE_COLON = re.compile(r"(?<!:)(?<!\[abi):(?!:)")

USDT_NAME = re.compile(r"[A-Za-z0-9_.$-]+")
"""The provider or the name of a USDT probe."""
_PATTERN = re.compile(r"[A-Za-z0-9_.$*?\[\]!-]+")

SONAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_+.-]*\.so(\.[A-Za-z0-9_+.-]+)?")
"""The name by which programs ask the dynamic loader for a library: DT_SONAME."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed attach string; ``str()`` returns its canonical form.

    A probe on a function has a ``symbol``, which may be a pattern, and may have a ``module`` (empty for the
    kernel itself) and an ``offset`` in bytes. A probe in a file has a ``path``, or a library's soname there;
    without a ``symbol``, its offset counts from the start of the file. A USDT probe also has a ``provider``.
    A tracepoint has a ``system`` and an ``event``. A system call has its name as ``symbol``. A pair has
    ``parts``: the events that begin it, then the event that ends it.
    """

    kind: Kind
    module: str = ""
    symbol: str = ""
    offset: int = 0
    system: str = ""
    event: str = ""
    path: str = ""
    provider: str = ""
    parts: tuple["Target", ...] = ()

    def __str__(self) -> str:
        if self.parts:
            return f"{' | '.join(map(str, self.parts[:-1]))} -> {self.parts[-1]}"
        if self.kind is Kind.TRACEPOINT:
            return f"{self.kind}:{self.system}:{self.event}"
        if self.kind is Kind.USDT:
            return f"{self.kind}:{self.path}:{self.provider}:{self.symbol}"
        place = f"{self.path}:" if self.path else f"{self.module}:" if self.module else ""
        if self.path and not self.symbol:
            return f"{self.kind}:{place}{self.offset:#x}"
        offset = f"+{self.offset}" if self.offset else ""
        return f"{self.kind}:{place}{self.symbol}{offset}"

    @property
    def is_pattern(self) -> bool:
        """Whether it may match several: a tracepoint's event, the symbol or the provider is a pattern.

        A function of a file is one only by INSTANCES, because ``(*T).M`` is a name in Go.
        """
        if self.kind.in_file and self.kind is not Kind.USDT:
            return INSTANCES in self.symbol
        return is_pattern(self.event or self.provider + self.symbol)

    @property
    def no_return(self) -> str | None:
        """The reason why a function or a system call has no return event; None if it has one.

        A call of it is its entry alone, and a probe of its return never fires.
        """
        if self.kind is Kind.SYSCALL:
            return NO_RETURN.get(self.symbol)
        of_kernel = self.kind in (Kind.CALL, Kind.KRETPROBE, Kind.FEXIT) and not self.module
        never = of_kernel and _ARCHITECTURE.sub("", self.symbol) in NEVER_RETURN
        return "it never returns" if never else None

    @property
    def is_entry_alone(self) -> bool:
        """Whether it is a call without a return event."""
        return self.no_return is not None and not self.kind.is_return

    @property
    def is_call(self) -> bool:
        """Whether it is an entry and its return."""
        return self.kind in (Kind.CALL, Kind.UCALL, Kind.SYSCALL) and self.no_return is None

    @property
    def is_joined(self) -> bool:
        """Whether it joins two events into one record, which then has a duration."""
        return self.is_call or self.kind is Kind.PAIR

    @property
    def precedes_exit(self) -> bool:
        """Whether no thread gets there that has begun to end, in do_exit()."""
        runs_program = self.kind.in_file or self.kind is Kind.SYSCALL
        return runs_program or self.system in (SYSTEM_CALLS, "raw_syscalls") or self.symbol == "do_exit"

    @property
    def enters_system_call(self) -> bool:
        """Whether it sees a system call with its arguments."""
        enters = self.system == SYSTEM_CALLS and self.event.startswith(SYSTEM_CALL_ENTRY)
        return self.kind is Kind.SYSCALL or enters

    @property
    def halves(self) -> tuple["Target", "Target"]:
        """The entry and the return of a call. Raises KeyError for another kind."""
        if self.kind is Kind.SYSCALL:
            enter = Target(Kind.TRACEPOINT, system="syscalls", event=f"sys_enter_{self.symbol}")
            return enter, replace(enter, event=f"sys_exit_{self.symbol}")
        entry, back = _HALVES[self.kind]
        return replace(self, kind=entry), replace(self, kind=back)


@lru_cache(1 << 12)  # each part of the agent that is given a probe asks for its target
def parse_target(text: str) -> Target:
    """Parse an attach string; raises GrammarError.

    ``kprobe:[MOD:]SYM[+OFF]``; ``kretprobe:[MOD:]SYM``, likewise ``fentry``, ``fexit`` and ``call``;
    ``uprobe:PATH:SYM[+OFF]|OFFSET``, likewise ``uretprobe`` and ``ucall``, PATH a path or ``[ROOT:]SONAME``;
    ``usdt:PATH:PROVIDER:NAME``; ``tracepoint:SYSTEM:EVENT``; ``syscall:NAME``.
    """
    refuse_forbidden(text, LONGEST)
    word, colon, rest = text.partition(":")
    if not colon:
        fail(f"{text!r} names no kind, write it as KIND:NAME, such as kprobe:vfs_read", text)
    kind = _kind(word, text)
    with part_of(text, len(word) + 1):
        if kind is Kind.TRACEPOINT:
            return _tracepoint(rest)
        if kind is Kind.SYSCALL:
            _whole(_SYSCALL_NAME, rest, "system call")
            return Target(kind, symbol=rest)
        if kind is Kind.USDT:
            return _usdt(rest)
        return _in_file(kind, rest) if kind.in_file else _function(kind, rest)


def _kind(word: str, text: str) -> Kind:
    try:
        kind = Kind(word)
    except ValueError:
        if meant := _SHORT.get(word):
            fail(f"unknown kind {word!r}, write {meant!s}", text)
        near = closest(word, Kind) or f", there are {', '.join(Kind)}"
        fail(f"unknown kind {word!r}{near}", text)
    if kind is Kind.PAIR:
        fail("a pair is written as pair: {from: …, to: …, key: FIELD}", text)
    return kind


def _tracepoint(text: str) -> Target:
    system, colon, event = text.partition(":")
    if not colon:
        slashed = text.replace("/", ":", 1)
        hint = f"tracepoint:{slashed}" if "/" in text else "tracepoint:SYSTEM:EVENT"
        fail(f"a tracepoint is named by its system and its event, write {hint}", text, len(text))
    _whole(_TRACE_NAME, system, "tracepoint system")
    with part_of(text, len(system) + 1):
        _whole(_PATTERN if is_pattern(event) else _TRACE_NAME, event, "tracepoint event")
    return Target(Kind.TRACEPOINT, system=system, event=event)


def _function(kind: Kind, text: str) -> Target:
    module, colon, rest = text.rpartition(":")
    symbol, plus, _ = rest.partition("+")
    if colon:
        _whole(MODULE, module, "module")
    with part_of(text, len(module) + len(colon)):
        _whole(_PATTERN if is_pattern(symbol) else SYMBOL, symbol, "function")
        if plus and kind is not Kind.KPROBE:
            what = "a return" if kind.is_return else f"{'an' if kind is Kind.FENTRY else 'a'} {kind}"
            fail(f"{what} has no offset, take it out or write kprobe", rest, len(symbol))
        if plus and is_pattern(symbol):
            fail("a pattern has no offset, take it out or name one function", rest, len(symbol))
        return Target(kind, module, symbol, _offset(rest, len(symbol) + 1) if plus else 0)


def _in_file(kind: Kind, text: str) -> Target:
    path, colon, rest = split_file(text)
    if not colon or not rest:
        fail(f"a place in a file is written as {kind}:PATH:FUNCTION or {kind}:PATH:0x1234", text, len(text))
    _check_path(path, text)
    with part_of(text, len(path) + 1):
        if rest[0].isdigit():
            return Target(kind, path=path, offset=_offset(rest, 0))
        symbol, plus, _ = rest.partition("+")
        if WRITTEN_NAME.fullmatch(rest):
            found = _WRITTEN_OFFSET.search(rest)
            symbol, plus = (rest[: found.start()], "+") if found else (rest, "")
        else:
            _whole(FILE_SYMBOL, symbol, "function")
        if plus and kind is not Kind.UPROBE:
            fail("a return has no offset, take it out or write uprobe", rest, len(symbol))
        if plus and INSTANCES in symbol:
            fail("a pattern has no offset, take it out or name one function", rest, len(symbol))
        offset = _offset(rest, len(symbol) + 1) if plus else 0
        return Target(kind, symbol=symbol, offset=offset, path=path)


def split_file(text: str) -> tuple[str, str, str]:
    """Split ``PATH:FUNCTION`` at its last colon that is not one of ``::``."""
    at = max((found.start() for found in _SINGLE_COLON.finditer(text)), default=-1)
    return (text[:at], ":", text[at + 1 :]) if at >= 0 else ("", "", text)


def _usdt(text: str) -> Target:
    """Parse ``PATH:PROVIDER:NAME``, or ``PATH:*``; a path may have colons, and a provider no ``/``."""
    before, _, name = text.rpartition(":")
    path, colon, provider = before.rpartition(":")
    if "/" in provider or not colon or (name == "*" and names_library(before)):
        path, provider = before, ""
    if not path or not name or (not provider and name != "*"):
        fail("a USDT probe is written as usdt:PATH:PROVIDER:NAME", text, len(text))
    _check_path(path, text)
    column = len(path) + 1
    for part, what in ((provider, "USDT provider"), (name, "USDT probe")):
        with part_of(text, column):
            if part:
                _whole(_PATTERN if is_pattern(part) else USDT_NAME, part, what)
        column += len(part) + bool(part)
    return Target(Kind.USDT, symbol=name, path=path, provider=provider or "*")


def _check_path(path: str, text: str) -> None:
    if not path.startswith("/") and not names_library(path):
        fail(
            f"{path!r} is neither a path, which begins with '/', nor a library's name, such as libc.so.6",
            text,
        )
    if found := re.search(r"\s", path):
        fail("the kernel takes no path with a blank in it: make a link to it", text, found.start())


def _offset(text: str, start: int) -> int:
    value = kernel_number(text[start:], 0, 2**32 - 1)
    if value is None:
        fail(f"{text[start:]!r} is not an offset in bytes, write a number such as 16 or 0x10", text, start)
    return value


def is_system_call(written: Target, placed: Target) -> bool:
    """Return whether a target as ``written`` is a system call's, and ``placed`` the function behind that."""
    name, function = written.symbol, placed.symbol
    return name.startswith(SYSTEM_CALL) and function != name and function.endswith(name)


def names_library(path: str) -> bool:
    """Return whether a ``path`` is ``SONAME`` or ``ROOT:SONAME``, a library below the directory ROOT."""
    root, colon, soname = path.rpartition(":")
    return SONAME.fullmatch(soname) is not None and root.startswith("/") == bool(colon)


def is_pattern(name: str) -> bool:
    """Return whether the name, a shell pattern, may match more than itself."""
    return re.search(r"[*?\[]", name) is not None


def _whole(pattern: re.Pattern[str], name: str, what: str) -> None:
    """Refuse a ``name`` that ``pattern`` does not match in full, at the first character that differs."""
    found = pattern.match(name)
    end = found.end() if found else 0
    if not name:
        fail(f"the name of the {what} is missing", name)
    if end < len(name):
        fail(f"a {what}'s name cannot have {name[end]!r} here", name, end)


def too_many_matches(target: Target, number: int, what: str, most: int) -> str:
    """Return why a pattern that matches so many is refused, and how to mend it, without a full stop."""
    return (
        f"'{target}' names {number} {what}s, more than max_matches {most}: narrow it, or raise "
        "global.max_matches"
    )
