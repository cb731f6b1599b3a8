"""Resolves a target as written to the places to attach: patterns, compilers' suffixes, modules."""

import fnmatch
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from kprobe_exporter.errors import ProbeRefused, sentence
from kprobe_exporter.grammar.lexis import SYMBOL, closest, misspelt
from kprobe_exporter.grammar.target import SYSTEM_CALL, Kind, Target, too_many_matches
from kprobe_exporter.symbols.functions import SILENT, Functions, similar, singles
from kprobe_exporter.symbols.lists import (
    TEXT,
    WRAPPERS,
    Lists,
)
from kprobe_exporter.symbols.successors import successors
from kprobe_exporter.tracefs.files import TRACEABLE, Tracefs
from kprobe_exporter.tracefs.kernel_files import KernelFiles
from kprobe_exporter.tracefs.refusal import NotBuilt, NotUnique

FPROBES = frozenset({Kind.FENTRY, Kind.FEXIT})
FUNCTIONS = frozenset({Kind.KPROBE, Kind.KRETPROBE, Kind.CALL}) | FPROBES

CLONE = re.compile(r"(?:\.(?:isra|constprop|part|lto_priv|llvm)\.[0-9]+)+")
"""Suffixes that compilers append to the name of a function that they changed. ``.cold`` is not among them:
it marks a part of a function, which no code calls."""

OVERRIDDEN = "__ftrace_invalid_address__"
"""The name in the list of a weak function that another function overrides (kernel/trace/ftrace.c)."""

LONGEST_NAME = 40  # Characters of a probe's name, at most
MOST_COMPARED = 64  # Characters at the beginning of a pattern that suggestions are searched with


class Resolved(NamedTuple):
    """The target to attach, and a clause for the user if it differs from what was written."""

    target: Target
    note: str = ""


class Resolver:
    """Reads each of the kernel's lists once, at first use: 50,000 lines take about 30 ms.

    ``events`` returns the names of a system's tracepoints, none for an unknown system. If a list cannot be
    read, targets stay as they are.
    """

    def __init__(self, lists: Lists, events: Callable[[str], Iterable[str]]) -> None:
        self.lists = lists
        self._events = events
        self._asked: set[str] = set()
        self._known: Functions | None = None
        self._addresses: dict[str, dict[str, int]] = {}  # of a system call's functions, by its sys_NAME

    @classmethod
    def of(cls, kernel: KernelFiles) -> "Resolver":
        """The resolver of this kernel."""
        return cls(Lists.of(kernel), lambda system: event_names(kernel.tracefs, system))

    def matching(self, target: Target, most: int) -> list[Target]:
        """Return the current matches of a pattern, sorted; raises ProbeRefused for 0 or more than ``most``.

        Functions match if they are traceable and not on the blacklist of kprobes; for a call or a return they
        also have to return. A compiler's clone (``f.isra.0``) is a match of its own, since it is called
        separately. A name that several functions share occurs once; the kernel refuses it.
        """
        if target.kind is Kind.TRACEPOINT:
            matches = matcher(target.event)
            found = [replace(target, event=name) for name in self._events(target.system) if matches(name)]
            what = "tracepoint"
        else:
            found = [replace(target, symbol=name, module=module) for name, module in self._functions(target)]
            found = [one for one in found if one.no_return is None]
            what = "function"
        if not found:
            raise ProbeRefused(f"'{target}' matches no {what}{self._instead(target)}.")
        if len(found) > most:
            raise ProbeRefused(f"{too_many_matches(target, len(found), what, most)}.")
        return sorted(found, key=lambda one: (one.event, one.symbol, one.module))

    def place(self, target: Target) -> Resolved:
        """Find where one target attaches.

        Raises ProbeRefused if the compiler made several functions of it, and for targets that an fprobe
        cannot take; kprobes are left for the kernel to refuse. A function of a module gets the module's
        name, by which the kernel arms the probe again when the module comes back
        (trace_kprobe_module_callback of kernel/trace/trace_kprobe.c). A function that the compiler
        renamed gets its name in this kernel, and so does the function behind a system call.
        """
        if target.kind not in FUNCTIONS or target.is_pattern:
            return Resolved(target)
        if (function := self._of_system_call(target)) is not None:
            note = f"'{target.symbol}' is '{function}' here"
            placed = self._in_list(replace(target, symbol=function))
            return Resolved(placed.target, "; ".join(filter(None, (note, placed.note))))
        return self._in_list(target)

    def _in_list(self, target: Target) -> Resolved:
        """Find the place of a function under its own name, or the one that the compiler gave it."""
        if self.lists.functions is None:
            return Resolved(target)
        self._asked.add(target.symbol)
        if target.module and target.module not in (self.lists.loaded or ()):
            if target.kind in FPROBES:
                raise ProbeRefused(
                    f"the module '{target.module}' is not loaded, and an fprobe cannot wait for it: "
                    f"kprobe:{target.module}:{target.symbol} is armed when it comes."
                )
            return Resolved(target)
        note, places = "", self._within(target)
        if not places and (clone := self._clone(target)) is not None:
            name, note = clone
            target = replace(target, symbol=name)
            places = self._within(target)
        if target.kind in FPROBES:
            self._check_fprobe(target, places)
        if len(places) == 1 and places[0] and not target.module:
            target = replace(target, module=places[0])
            note = note or f"'{target.symbol}' is a function of the module '{target.module}'"
        if target.module and target.kind in FPROBES:
            once = f"an fprobe is lost when '{target.module}' is unloaded, a kprobe comes back with it"
            note = f"{note}; {once}" if note else once
        return Resolved(target, note)

    def explain(self, target: Target, error: ProbeRefused) -> str:
        """Return why the kernel refused a function, as its lists tell it, and what to write instead.

        If they tell nothing, it is the kernel's own reason.
        """
        if isinstance(error, NotBuilt):
            return str(error)
        if (function := self._of_system_call(target)) is not None:
            target = replace(target, symbol=function)
        if isinstance(error, NotUnique):
            return f"{str(error).rstrip('.')}; {singles(target, self.lists)}."
        self._asked.add(target.symbol)
        if self._known is None or target.symbol not in self._known.names:
            self._known = Functions(self.lists, self._asked)  # one reading for all that were asked for
        answer = self._known.answer(target.module, target.symbol, target.offset)
        if answer.can is not False:
            return str(error)
        return sentence(answer.why)

    def never_fires(self, target: Target) -> str:
        """Return a clause, as ``check --live`` does: why a probe of a function never fires; "" if it may."""
        if target.kind not in FUNCTIONS or target.symbol not in SILENT:
            return ""
        return Functions(self.lists, [target.symbol]).answer(target.module, target.symbol, 0).why

    def _of_system_call(self, target: Target) -> str | None:
        """Return the function behind the system call that ``target`` names; None if it names a function.

        An fprobe takes the name under which that function is traceable: if the call has no arguments, this
        may be another one (__SYS_STUB0 of arch/x86/include/asm/syscall_wrapper.h).
        """
        name = target.symbol
        places: Mapping[str, list[str]] = self.lists.functions or {}
        if target.module or not name.startswith(SYSTEM_CALL) or name in places:
            return None
        functions = [f"{wrapper}{name}" for wrapper in WRAPPERS]
        if listed := next((one for one in functions if one in places), None):
            return listed
        alias = f"__do_{name}"
        if name not in self._addresses:
            self._addresses[name] = self._addresses_of({*functions, name, alias})
        addresses = self._addresses[name]
        function = next((one for one in functions if one in addresses), None)
        if function is None or name in addresses:
            return None
        if target.kind in FPROBES and alias in places:
            return alias if 0 < addresses[function] == addresses.get(alias) else function
        return function

    def _addresses_of(self, names: Iterable[str]) -> dict[str, int]:
        """Return the addresses of those names that are the kernel's functions, 0 where they are hidden."""
        known = self.lists.named(names) or {}
        own = ((name, one) for name, found in known.items() for one in found if not one.module)
        return {name: one.address for name, one in own if one.kind in TEXT}

    def _within(self, target: Target) -> list[str]:
        found = [] if self.lists.functions is None else self.lists.functions.get(target.symbol, [])
        return [module for module in found if target.module in ("", module)]

    def _functions(self, target: Target) -> set[tuple[str, str]]:
        """Return name and module of each function that matches a pattern."""
        if self.lists.functions is None:
            raise ProbeRefused(
                f"'{target}' is a pattern, and this kernel does not list its functions ({TRACEABLE}): name "
                "them one by one."
            )
        matches = matcher(target.symbol)
        off = self.lists.blacklisted or set()
        return {
            (name, module)
            for name, found in self.lists.functions.items()
            if matches(name) and name.encode() not in off and _is_function(name)
            for module in found
            if target.module in ("", module)
        }

    def _clone(self, target: Target) -> tuple[str, str] | None:
        """Return the compiler's form of a function that does not exist under its own name."""
        if target.offset or (places := self.lists.functions) is None:
            return None
        names = [name for name in places.dotted if name.startswith(f"{target.symbol}.")]
        if target.module:
            names = [name for name in names if target.module in places.get(name, ())]
        found = with_suffix(target.symbol, names)
        if found and self.lists.named([target.symbol]):
            return None  # the function exists: it is listed under an alias, or it is not traceable
        return found

    def _check_fprobe(self, target: Target, places: list[str]) -> None:
        """Refuse a function that an fprobe cannot take, and a shared name, of which it would take all."""
        if not places:
            later = (one for one in successors(target.symbol) if one in (self.lists.functions or {}))
            near = next((f": {one} does its work today" for one in later), "")
            if not near and target.symbol.startswith(SYSTEM_CALL):
                near = misspelt(target.symbol, self.lists.system_calls)
            near = near or misspelt(
                target.symbol, similar(self.lists.traceable(), target.module, target.symbol)
            )
            raise ProbeRefused(
                f"an fprobe takes only the functions of {TRACEABLE}, and '{target.symbol}' is not among "
                f"them{near}."
            )
        if len(self.lists.functions[target.symbol] if self.lists.functions else ()) > 1:
            raise ProbeRefused(
                f"several functions are called '{target.symbol}', and an fprobe would take them all; "
                f"{singles(replace(target, kind=Kind.KPROBE), self.lists)}."
            )

    def _instead(self, target: Target) -> str:
        """Return a clause: why a pattern matches nothing, or which names begin like it."""
        if target.module and target.module not in (self.lists.loaded or ()):
            return f": the module '{target.module}' is not loaded, and a pattern is looked up once"
        if target.kind is Kind.TRACEPOINT:
            names = list(self._events(target.system))
            if not names:
                return f": this kernel has no tracepoints of a system '{target.system}'"
        else:
            names = [
                name for name, found in (self.lists.functions or {}).items() if target.module in ("", *found)
            ]
        return begin_alike(target.event or target.symbol, sorted(names))


def with_suffix(symbol: str, functions: Iterable[str]) -> tuple[str, str] | None:
    """Return the one form that the compiler made of a function, and a clause about it; None if none.

    Raises ProbeRefused if there are several, since each of them serves only some of the callers.
    """
    start = f"{symbol}."
    found = sorted(
        name for name in functions if name.startswith(start) and CLONE.fullmatch(name, len(symbol))
    )
    if len(found) > 1:
        raise ProbeRefused(f"'{symbol}' is compiled as {', '.join(found)} here: name one of them.")
    if not found:
        return None
    but = "not every call enters it" if ".part." in found[0] else "its arguments may be others"
    return found[0], f"'{symbol}' is compiled as '{found[0]}' here: {but}"


def event_names(files: Tracefs, system: str) -> list[str]:
    """Return the tracepoints of a system: its directories, without the files ``enable`` and ``filter``."""
    try:
        names = files.names(f"events/{system}")
    except OSError:
        return []
    return [name for name in names if files.exists(f"events/{system}/{name}/enable")]


def tracepoint_named(files: Tracefs, event: str) -> str:
    """Return ``SYSTEM:EVENT`` of a tracepoint with this name, or ""."""
    found = (name for name in _systems(files) if files.exists(f"events/{name}/{event}/format"))
    return next((f"{system}:{event}" for system in found), "")


def _systems(files: Tracefs) -> list[str]:
    with suppress(OSError):
        return [name for name in files.names("events") if files.exists(f"events/{name}/enable")]
    return []


def near_tracepoint(files: Tracefs, system: str, event: str) -> str:
    """Return ``, did you mean …?`` with the event of another system or a similar name, or nothing."""
    if there := tracepoint_named(files, event):
        return f", did you mean '{there}'?"
    systems = _systems(files)
    if system not in systems:
        return closest(system, systems)
    with suppress(OSError):
        return closest(event, files.names(f"events/{system}"))
    return ""


def _is_function(name: str) -> bool:
    return SYMBOL.fullmatch(name) is not None and not name.startswith(OVERRIDDEN) and ".cold" not in name


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches names like the shell, case-sensitively (fnmatch.fnmatchcase)."""
    whole = re.compile(fnmatch.translate(pattern))
    return lambda name: whole.match(name) is not None


def begin_alike(pattern: str, names: list[str]) -> str:
    """Return a clause with the sorted names that share the longest beginning with the pattern."""
    head = re.split(r"[*?\[]", pattern[:MOST_COMPARED], maxsplit=1)[0]
    for length in range(len(head), 0, -1):
        start = head[:length]
        near = names[bisect_left(names, start) : bisect_left(names, f"{start}\U0010ffff")]
        if near:
            begin = f"{len(near)} begin" if len(near) > 1 else "one begins"
            return f"; {begin} with '{start}': {near[0]}{', …' if len(near) > 1 else ''}"
    return ""


def probe_name(base: str, function: str, taken: set[str]) -> str:
    """Return the name of a probe that the pattern of ``base`` made, and add it to ``taken``.

    It has at most 40 characters of ``[a-z0-9_]``. A name that is too long or taken ends in a hash of the
    full name, so that it is the same at each start.
    """
    whole = f"{base}_{function}"
    name = clean = re.sub(r"[^a-z0-9_]", "_", whole.lower())
    for number in itertools.count():
        if len(name) <= LONGEST_NAME and name not in taken:
            break
        import hashlib  # noqa: PLC0415 - few names come to this

        digest = hashlib.sha256(f"{whole}/{number}".encode()).hexdigest()[:7]
        name = f"{clean[: LONGEST_NAME - 8]}_{digest}"
    taken.add(name)
    return name
