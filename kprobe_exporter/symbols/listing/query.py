"""Queries for places, such as ``tcp_*`` or ``sched:*``: why they fail, and what they find in a file."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import NamedTuple

from kprobe_exporter.elf import UsdtProbe, function_at, functions, locate, locate_usdt, usdt_probes
from kprobe_exporter.elf.demangle import copied_words, demangle, is_instance
from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.lexis import closest, kernel_number
from kprobe_exporter.grammar.target import (
    FILE_SYMBOL,
    INSTANCES,
    LONGEST,
    WRITTEN_NAME,
    Kind,
    Target,
    is_pattern,
    names_library,
    parse_target,
    split_file,
)
from kprobe_exporter.grammar.usdt_argument import UsdtArgument, parse_usdt_arguments
from kprobe_exporter.symbols.resolve import begin_alike, matcher
from kprobe_exporter.util.rooted_path import ProbedFiles

KINDS = frozenset(kind for kind in Kind if kind is not Kind.PAIR)
"""The kinds of a query. A pair is written as a mapping and has no name of its own."""

LIKELY = 0.8  # Similarity, from 0 to 1, at which one name counts as a misspelling of another


class Query(NamedTuple):
    """A shell pattern over places. ``kind`` is None for any kind, ``owner`` empty for any owner."""

    text: str
    kind: Kind | None
    owner: str
    name: str

    @property
    def is_exact(self) -> bool:
        """Whether it names one place, without a pattern. The path of a file is never a pattern."""
        in_file = self.kind is not None and self.kind.in_file
        owner = _path_and_provider(self.owner)[1] if in_file else self.owner
        return not is_pattern(owner + self.name)

    def matcher(self) -> Callable[[str, str], bool]:
        """Return a function that tells whether an owner and a name match, by the shell's rules."""
        owned = matcher(self.owner) if self.owner else lambda owner: True
        named = matcher(self.name) if self.name != "*" else lambda name: True
        return lambda owner, name: named(name) and owned(owner)


def parse_query(text: str) -> Query:
    """Parse a pattern, ``[KIND:][OWNER:]NAME``; an empty part matches all.

    The owner of a function in a file is its path, or the soname of a library; that of a USDT probe is
    ``PATH:PROVIDER`` or ``PATH``.
    """
    word, colon, rest = text.partition(":")
    kind = Kind(word) if colon and word in KINDS else None
    rest = rest if kind else text
    if kind and kind.in_file and ":" not in rest:
        return Query(text, kind, rest, "*")
    owner, _, name = split_file(rest) if kind and kind.in_file else rest.rpartition(":")
    if kind is Kind.USDT and "/" in name:
        owner, name = rest, "*"
    return Query(text, kind, owner, name or "*")


def refusal(sentence: str) -> ProbeRefused:
    """Return the error with this sentence; adds a full stop if no mark ends it."""
    return ProbeRefused(sentence if sentence.endswith(("?", ".", "…")) else f"{sentence}.")


def no_tracepoint(query: Query, events: Collection[str]) -> ProbeRefused:
    """Return the error for an unknown tracepoint. ``events`` are all tracepoints, as ``SYSTEM:EVENT``."""
    if not query.owner and query.name in _systems(events):
        return refusal(f"'{query.text}' is a system of tracepoints: write 'tracepoint:{query.name}:*'")
    return refusal(f"'{query.text}' matches no tracepoint of this kernel{_near(query, events)}")


def no_syscall(query: Query, calls: Collection[str]) -> ProbeRefused:
    """Return the error for a system call that is not among ``calls``, which can be probed."""
    if not calls:
        return refusal(
            f"'{query.text}': this kernel has no tracepoints of system calls (CONFIG_FTRACE_SYSCALLS)"
        )
    near = closest(query.name, calls) if query.is_exact else begin_alike(query.name, sorted(calls))
    return refusal(f"'{query.text}' matches no system call that can be probed{near}")


def no_owner(query: Query, events: Collection[str], modules: Collection[str]) -> ProbeRefused:
    """Return the error for an owner that is not a loaded module and has no such tracepoint."""
    systems = _systems(events)
    if query.owner in systems:
        return no_tracepoint(query, events)
    kinds = sorted(kind.value for kind in KINDS)
    meant = closest(query.owner, [*kinds, *systems, *modules]) or f"; kinds are {', '.join(kinds)}"
    return refusal(
        f"'{query.text}' begins with '{query.owner}', which is neither a kind of probe nor a system of"
        f" tracepoints nor a loaded module{meant}"
    )


def neither(
    query: Query, events: Collection[str], functions: Iterable[str], error: ProbeRefused
) -> ProbeRefused:
    """Return the error for a name that is not a tracepoint, and as a function is refused with ``error``."""
    if query.is_exact:
        names = {event.partition(":")[2]: event for event in events}
        if near := get_close_matches(query.name, names, n=1, cutoff=LIKELY):
            return refusal(f"{str(error).rstrip('.?')}; or do you mean '{Kind.TRACEPOINT}:{names[near[0]]}'?")
        return error
    names_alike = begin_alike(
        query.name, sorted({*functions, *(event.partition(":")[2] for event in events)})
    )
    return refusal(f"'{query.text}' matches no function and no tracepoint that can be probed{names_alike}")


def _systems(events: Iterable[str]) -> set[str]:
    return {event.partition(":")[0] for event in events}


def _near(query: Query, events: Collection[str]) -> str:
    """Suggest a tracepoint of this name in another system, or of a similar name."""
    there = next((event for event in events if event.partition(":")[2] == query.name), None)
    if there:
        return f", did you mean '{there}'?"
    if not query.is_exact:
        return begin_alike(f"{query.owner}:{query.name}", sorted(events)) if query.owner else ""
    if query.owner:
        return closest(f"{query.owner}:{query.name}", events)
    return closest(query.name, {event.partition(":")[2] for event in events})


def file_places(query: Query, files: ProbedFiles) -> Iterable[str]:
    """Return the attach strings of the matching functions of a file, sorted; there may be a million.

    The file is ``query.owner``, a path or a library's soname, and stays open in ``files``. An offset in it
    stands for the function there. Functions of C++ and Rust have the names that people write; a pattern is of
    these or of the symbols. Names that no attach string can hold are omitted. Raises GrammarError if the file
    cannot be probed, and ProbeRefused, with a sentence, if no function matches or can be probed.
    """
    kind = query.kind or Kind.UPROBE
    path = _absolute(query.owner)
    parse_target(f"{kind}:{path}:main")
    offset = kernel_number(query.name)
    if offset is not None:
        return [str(_at(kind, path, offset, files))]
    if query.is_exact:
        _require_locatable(kind, path, query.name, files)
        return [f"{kind}:{path}:{query.name}"]
    names = functions(path, files)
    fits, written = _fitting(path), set()
    for symbol, text in _matching(query.name, names):
        if text is not None and fits(text):
            written.add(text)
        elif fits(symbol):
            written.add(symbol)
    found = sorted(written)
    if not found:
        near = begin_alike(query.name, names)
        raise refusal(f"'{query.name}' matches none of the {len(names)} functions of {path}{near}")
    if kind is not Kind.UPROBE:
        _require_locatable(kind, path, found[0], files)
    prefix = f"{kind}:{path}:"
    return (prefix + name for name in found)


def _matching(pattern: str, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield those of these symbols that match, or whose name as people write it does, each with that name."""
    if pattern == "*":
        yield from ((name, demangle(name)) for name in names)
        return
    matches = partial(is_instance, pattern) if INSTANCES in pattern else matcher(pattern)
    copied = copied_words(pattern)
    for word in copied:
        names = [name for name in names if word in name]
    for name in names:
        text = demangle(name)
        if matches(name) or (text is not None and matches(text)):
            yield name, text


def _at(kind: Kind, path: str, offset: int, files: ProbedFiles) -> Target:
    """Return the place at an ``offset`` of a file by the name of the function that has it.

    If no attach string can hold the name, or if it is that of several functions, the offset stays.
    """
    if kind is not Kind.UPROBE:
        raise refusal(f"only a uprobe sits at an offset in a file: write uprobe:{path}:{offset:#x}")
    target = Target(kind, path=path, offset=offset)
    with suppress(GrammarError):
        found = function_at(path, offset, files)
        if found is not None and _fitting(path)(found[0]):
            named = Target(kind, path=path, symbol=found[0], offset=found[1])
            if locate(named, files).offset == offset:
                return named
    _require_locatable(kind, path, f"{offset:#x}", files)
    return target


def _absolute(path: str) -> str:
    """Return a file's absolute path, or a library's soname as it is."""
    if names_library(path) and not os.path.exists(path):  # noqa: PTH110
        return path
    plain = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow a library's link
    if ".." not in path.split("/"):
        return plain
    whole = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
    with suppress(OSError):
        if os.path.samefile(plain, whole):  # noqa: PTH121
            return plain
    return whole  # behind a link, ".." is the parent of the directory to which the link leads


def _path_and_provider(owner: str) -> tuple[str, str]:
    """Split ``PATH:PROVIDER``, the owner of a USDT probe; a path may have colons, and a provider no ``/``."""
    path, colon, provider = owner.rpartition(":")
    return (owner, "") if not colon or "/" in provider or names_library(owner) else (path, provider)


def usdt_places(query: Query, files: ProbedFiles) -> dict[Target, list[str]]:
    """Return the matching USDT probes of a file, sorted, each with a line for each place's arguments.

    Raises GrammarError if the file cannot be read or, for a plain name, if there is no such probe; and
    ProbeRefused, with a sentence, if none matches.
    """
    path, provider = _path_and_provider(query.owner)
    path = _absolute(path)
    if provider and query.is_exact:
        target = parse_target(f"{Kind.USDT}:{path}:{provider}:{query.name}")
        one = locate_usdt(target, files)
        return {replace(target, symbol=one.name): _usdt_arguments(one)}
    known = usdt_probes(path, files)
    owned, named = matcher(provider or "*"), matcher(query.name)
    found = {
        Target(Kind.USDT, path=path, provider=one.provider, symbol=one.name): _usdt_arguments(one)
        for one in known
        if owned(one.provider) and named(one.name)
    }
    if not found:
        near = begin_alike(query.name, sorted({one.name for one in known}))
        raise refusal(f"'{query.text}' matches none of the {len(known)} USDT probes of {path}{near}")
    return found


def _usdt_arguments(probe: UsdtProbe) -> list[str]:
    """Return the arguments as ``$arg1: s32``, those at all places in one line if they have the same types."""
    lines = {
        ", ".join(
            f"$arg{number}: {_usdt_type(one)}"
            for number, one in enumerate(parse_usdt_arguments(site.arguments, probe.machine), 1)
        ): None
        for site in probe.sites
    }
    return [line for line in lines if line]


def _usdt_type(argument: UsdtArgument) -> str:
    try:
        argument.fetched()
    except GrammarError:
        return f"{argument.text} (the kernel cannot fetch it)"
    return argument.type


def _fitting(path: str) -> Callable[[str], bool]:
    """Return a function that tells whether an attach string can hold a name beside the file's path."""
    room = LONGEST - len(f"{Kind.UPROBE}:{path}:")

    def fits(name: str) -> bool:
        return len(name) <= room and bool(FILE_SYMBOL.fullmatch(name) or WRITTEN_NAME.fullmatch(name))

    return fits


def _require_locatable(kind: Kind, path: str, name: str, files: ProbedFiles) -> None:
    """Raise ProbeRefused if a probe of this kind cannot be set; for a call, if a half of it cannot."""
    target = parse_target(f"{kind}:{path}:{name}")
    try:
        for half in target.halves if kind is Kind.UCALL else (target,):
            locate(half, files)
    except GrammarError as error:
        raise refusal(f"'{target}' cannot be probed: {error.message}") from None
