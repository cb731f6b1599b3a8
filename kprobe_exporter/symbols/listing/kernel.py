"""The functions and tracepoints of the running kernel that can be probed, from its own lists."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import Kind, Target, is_pattern, is_system_call, parse_target
from kprobe_exporter.symbols.functions import Functions
from kprobe_exporter.symbols.listing.query import (
    Query,
    neither,
    no_owner,
    no_syscall,
    no_tracepoint,
    refusal,
)
from kprobe_exporter.symbols.lists import attempt, lines_of, symbols
from kprobe_exporter.symbols.resolve import FPROBES, FUNCTIONS, Resolver
from kprobe_exporter.tracefs.define import not_built
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.features import no_fprobes
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import running_kernel

EVENTS = "available_events"
"""In tracefs: a line ``SYSTEM:EVENT`` for each event that can be enabled (kernel/trace/trace_events.c)."""

EXITS = "syscalls:sys_exit_"  # Prefix of the tracepoints at the exit of system calls

NOT_COUNTED = ("bpf", "__builtin__")
"""Owners of symbols in kallsyms besides modules; the kernel does not count theirs as namesakes."""

BLACKLIST = (
    "/sys/kernel/debug/kprobes/blacklist cannot be read: the kernel may refuse some of these functions"
)


class Listed(NamedTuple):
    """The places that can be probed, sorted, and sentences about them for the user."""

    places: list[Target]
    notes: list[str]


class KernelPlaces:
    """Looks up places, only by reading. ``root`` is ``/``, or a directory that a test uses instead."""

    def __init__(self, tracefs: Path, root: Path = Path("/")) -> None:
        self._files = ReadOnlyTracefs(tracefs)
        self._kernel = running_kernel(self._files, root)
        self._resolver = Resolver.of(self._kernel)
        self._lists = self._resolver.lists
        self._notes: list[str] = []

    def find(self, query: Query) -> Listed:
        """Return the places that match. Raises GrammarError, and ProbeRefused where none can be probed."""
        self._notes = []
        if query.kind in FUNCTIONS:
            found = self._functions(query)
        elif query.kind is Kind.SYSCALL:
            found = self._syscalls(query)
        elif query.kind is Kind.TRACEPOINT:
            found = self._tracepoints(query)
            if not found:
                raise no_tracepoint(query, self._events)
        else:
            found = self._any(query)
        return Listed(sorted(found, key=str), self._notes)

    def starting(self, text: str) -> Iterator[str]:
        """Yield places that begin with ``text``, for a shell. To be fast, it yields refused ones, too."""
        kind, colon, rest = text.partition(":")
        if colon and kind in FUNCTIONS:
            yield from (f"{kind}:{name}" for name in self._function_names() if name.startswith(rest))
        elif colon and kind == Kind.TRACEPOINT:
            yield from (f"{kind}:{name}" for name in self._events if name.startswith(rest))
        else:
            prefixes = (f"{kind}:" for kind in sorted({*FUNCTIONS, Kind.TRACEPOINT}))
            every = chain(prefixes, self._function_names(), self._events)
            yield from (name for name in every if name.startswith(text))

    def _any(self, query: Query) -> list[Target]:
        """Return the matching tracepoints and functions. Raises ProbeRefused only if there are neither."""
        events = self._tracepoints(query)
        try:
            return events + self._functions(query)
        except ProbeRefused as error:
            if events:
                if not (query.is_exact or query.owner or (self._has_kprobes and self._places)):
                    self._notes.append(f"functions are omitted: {error}")
                return events
            if not self._has_kprobes or not self._places:
                raise
            if query.owner and not is_pattern(query.owner) and query.owner not in self._modules:
                raise no_owner(query, self._events, self._modules) from None
            raise neither(query, self._events, self._places, error) from None

    def _functions(self, query: Query) -> list[Target]:
        """Return the functions for a probe of this kind, or for a kprobe if no kind was given."""
        kind = query.kind or Kind.KPROBE
        if kind in FPROBES and (reason := no_fprobes(self._kernel)):
            raise refusal(f"'{query.text}' cannot be probed: {reason}")
        if kind not in FPROBES and not self._has_kprobes:
            raise ProbeRefused(not_built("kprobe_events"))
        if query.is_exact:
            return [self._function(query, kind)]
        matches = query.matcher()
        every = self._resolver.matching(Target(kind, symbol=query.name), sys.maxsize)
        found = [one for one in every if matches(one.module, one.symbol)]
        alone = self._alone(found)
        if not alone:
            shared = f": several functions share the name '{found[0].symbol}'" if found else ""
            raise refusal(f"'{query.text}' matches no function that can be probed{shared}")
        if kind not in FPROBES and self._lists.blacklisted is None:
            self._notes.append(BLACKLIST)
        return alone

    def _function(self, query: Query, kind: Kind) -> Target:
        """Return the one function of this name and add notes on it. Raises ProbeRefused with the reason."""
        target = parse_target(f"{kind}:{query.owner}{':' if query.owner else ''}{query.name}")
        if query.kind is None and query.owner and query.owner not in self._modules:
            raise no_owner(query, self._events, self._modules)
        one, note = self._resolver.place(target)
        notes = [note]
        if kind not in FPROBES:
            can, why = Functions(self._lists, [target.symbol, one.symbol]).answer(
                one.module, one.symbol, one.offset
            )
            if can is False or not self._alone([one]):
                raise refusal(f"'{target}' cannot be probed: {why}")
            notes.append(why)
        shown = target if is_system_call(target, one) else one
        self._notes += [f"{shown}: {text}" for text in notes if text]
        return shown

    def _alone(self, targets: list[Target]) -> list[Target]:
        """Return the targets whose name is unique by number_of_same_symbols() of trace_kprobe.c.

        A name without a module has to be unique among all symbols, including data and those of modules.
        """
        wanted = {target.symbol.encode() for target in targets}
        known = attempt(lambda: symbols(_repeated(self._lists.symbols(), wanted), wanted))
        if known is None:
            return [one for one in targets if _is_alone(one, self._places.get(one.symbol, ()))]
        homes = {
            name: [one.module for one in several if not one.module.startswith(NOT_COUNTED)]
            for name, several in known.items()
        }
        return [one for one in targets if _is_alone(one, homes.get(one.symbol, ()))]

    def _tracepoints(self, query: Query) -> list[Target]:
        matches = query.matcher()
        pairs = (event.split(":", 1) for event in self._events)
        found = (Target(Kind.TRACEPOINT, system=system, event=name) for system, name in pairs)
        return [target for target in found if matches(target.system, target.event)]

    def _syscalls(self, query: Query) -> list[Target]:
        """Return the matching system calls, which are probed by their tracepoints."""
        matches = query.matcher()
        calls = [event.removeprefix(EXITS) for event in self._events if event.startswith(EXITS)]
        found = [Target(Kind.SYSCALL, symbol=call) for call in calls if matches("", call)]
        if not found:
            raise no_syscall(query, calls)
        return found

    def _function_names(self) -> Iterator[str]:
        """Yield ``NAME`` or ``MOD:NAME`` of each function in the kernel's list."""
        for name, homes in self._places.items():
            yield from (f"{home}:{name}" if home else name for home in set(homes))

    @cached_property
    def _has_kprobes(self) -> bool:
        return self._files.exists("kprobe_events")

    @property
    def _places(self) -> Mapping[str, list[str]]:
        return self._lists.functions or {}

    @property
    def _modules(self) -> set[str]:
        return self._lists.loaded or set()

    @cached_property
    def _events(self) -> list[str]:
        """``SYSTEM:EVENT`` of the kernel's own events. Events of tools and agents come and go: they are
        omitted."""
        lines = attempt(lambda: self._files.read(EVENTS).decode("ascii", "replace").split()) or []
        made = attempt(lambda: {f"{one.group}:{one.event}" for one in list_definitions(self._files)}) or set()
        return [line for line in lines if ":" in line and line not in made]


def _is_alone(target: Target, homes: Iterable[str]) -> bool:
    """Whether a name stands for one symbol. ``homes`` are the modules of all its known symbols."""
    there = [home for home in homes if target.module in ("", home)]
    return len(there) < 2


def _repeated(blocks: Iterable[bytes], wanted: set[bytes]) -> list[bytes]:
    """Return the lines of kallsyms for shared names: about 2,000 of 60,000 names remain."""
    first: dict[bytes, bytes] = {}
    others: list[bytes] = []
    for line in lines_of(blocks):
        fields = line.split(None, 3)
        if len(fields) > 2 and fields[2] in wanted and first.setdefault(fields[2], line) is not line:
            others.append(line)
    return [*(first[name] for name in {line.split(None, 3)[2] for line in others}), *others]
