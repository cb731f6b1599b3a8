"""From a function's name to its offset in a file, or to a sentence that says why it has none.

A uprobe sits at an offset in a file, and every process that runs the file hits it. A path is resolved in
the agent's mount namespace: a container's file is ``/proc/PID/root/usr/bin/x``, PID a process in it. Links
in the container stay in it.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, islice

from kprobe_exporter.elf import Code, library_path
from kprobe_exporter.elf.demangle import demangled, function_name, is_instance, is_mangled, is_same
from kprobe_exporter.elf.reader import ElfFile, opened
from kprobe_exporter.elf.tables import FUNC, GLOBAL, IFUNC, LOCAL, UNDEFINED, WEAK, ElfSymbol, SymbolTable
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.grammar.target import WRITTEN_NAME, Target, too_many_matches
from kprobe_exporter.util.rooted_path import ProbedFiles

MOST_NEAR = 20_000  # Names that are searched for the nearest one, which takes 4 ms per 1,000
MOST_NAMES = 1000  # Names of the code at one offset
MOST_TOLD = 8  # Offsets, versions or libraries that one error message lists

WORD = re.compile(r"\b(?!std\b|operator\b)[A-Za-z_]\w*")
"""A word that a compiler writes into a symbol, after its length."""

COLD = ".cold"
"""Ends the symbol of the part of a function that the compiler put aside. No call enters it."""

WIDER = {GLOBAL: 0, WEAK: 1, LOCAL: 2}
"""The bindings of symbols, that with the widest use first."""


def locate(target: Target, files: ProbedFiles | None = None) -> Code:
    """Return where a uprobe or a uretprobe has to sit: at a symbol, or at an offset from it or in the file.

    ``NAME@VERSION`` is that version of a symbol, a plain name the default version. An exported function comes
    before a static one. Raises GrammarError with a sentence if there is no code, or if the name is imported,
    ambiguous or data. It also does so if the name is resolved only when the program starts (IFUNC).

    A return probe is refused in a Go program: a uretprobe replaces a return address on the stack, and the
    Go runtime, which moves stacks, ends the program when it finds that address.
    """
    path = library_path(target.path, files)
    with opened(path, files) as file:
        if target.kind.is_return and file.is_go:
            raise GrammarError(
                f"{path} is written in Go, which a probe on a return makes crash: probe the entry"
            )
        found = path if path != target.path else None
        return Code(_offset(file, target.symbol, target.offset), file.machine, file.inode, found)


def functions(path: str, files: ProbedFiles | None = None) -> list[str]:
    """Return the names that ``locate`` finds, each once, sorted. Raises GrammarError."""
    with opened(library_path(path, files), files) as file:
        return [name for name, _ in groupby(sorted(file.functions()))]


def function_at(path: str, offset: int, files: ProbedFiles | None = None) -> tuple[str, int] | None:
    """Return the function whose code is at an ``offset`` in the file, and the bytes between.

    If a function has several names, the one with the widest binding counts. Among these it is that with the
    fewest leading underscores, then the first in the alphabet. None if no name is known. Raises GrammarError,
    also if there is no code at the offset.
    """
    with opened(library_path(path, files), files) as file:
        address = file.address_of(_offset(file, "", offset))
        assert address is not None
        found = [
            (rank(name, one.binding), name, one.value) for name, one in islice(file.at(address), MOST_NAMES)
        ]
        return (min(found)[1], address - min(found)[2]) if found else None


def rank(name: str, binding: int) -> tuple[int, int]:
    """Return what makes a name of a function the better one, the least first."""
    return WIDER.get(binding, len(WIDER)), len(name) - len(name.lstrip("_"))


def _offset(file: ElfFile, symbol: str, offset: int) -> int:
    if not symbol:
        if not any(part.offset <= offset < part.offset + part.size for part in file.code):
            raise GrammarError(f"the offset {offset:#x} of {file.path} is not in its code")
        return offset
    found = _symbol(file, symbol)
    if offset and offset >= found.size > 0:
        raise GrammarError(f"{symbol!r} of {file.path} has {found.size} bytes, so none at {offset}")
    place = file.offset_of(found.value + offset)
    if place is None:
        raise GrammarError(f"{symbol!r} of {file.path} is not in the code that this file holds")
    return place


def _symbol(file: ElfFile, symbol: str) -> ElfSymbol:
    name, _, version = symbol.partition("@")
    named = file.named(name) or (_demangled(file, symbol) if "::" in symbol or "(" in symbol else [])
    if version:  # the linker writes ``@@`` before the default version
        wanted = version.removeprefix("@")
        matching = [one for one in named if one.version == wanted and (one.default or wanted == version)]
    else:
        matching = [one for one in named if one.default]
    code = [one for one in matching if one.is_code]
    code = [one for one in code if one.binding != LOCAL] or code
    places = {one.value: one for one in code}
    if len(places) > 1:
        offsets = [file.offset_of(value) for value in islice(sorted(places), MOST_TOLD)]
        listed = ", ".join(hex(offset) for offset in offsets if offset is not None)
        raise GrammarError(
            f"{symbol!r} is {len(places)} functions of {file.path}, name one by its offset: {listed}"
        )
    if not places:
        raise GrammarError(_why_not(file, symbol, named, matching))
    return next(iter(places.values()))


def _demangled(file: ElfFile, name: str) -> list[ElfSymbol]:
    """Return the symbols of the C++ or Rust functions of this name, with or without its parameters.

    Only a symbol that has the last word of the name is read, since a program may have a million.
    """
    found: dict[bool, list[ElfSymbol]] = {False: [], True: []}
    for table, number, mangled, text in _mangled(file, name):
        is_clone = "." in mangled and name != text
        if is_same(name, text) and not (is_clone and COLD in mangled):
            [row] = table.rows(number, 1)
            found[is_clone].append(table.symbol(number, row))
    return found[False] or found[True]


def _mangled(file: ElfFile, name: str) -> Iterator[tuple[SymbolTable, int, str, str]]:
    """Yield the functions of C++ and Rust that may have this name: table, number, symbol and text."""
    words = WORD.findall(re.split(r"[(<]|\boperator\b", name)[0])
    last = f"{len(words[-1])}{words[-1]}" if words else ""
    for table, number, mangled in file.numbered_functions():
        if is_mangled(mangled) and last in mangled and (text := demangled(mangled)) is not None:
            file.budget.spend(len(mangled))
            yield table, number, mangled, text


def matching_functions(target: Target, most: int, files: ProbedFiles | None = None) -> list[Target]:
    """Return the instances that a target with INSTANCES stands for, sorted, by their written names.

    A name has its parameters if several instances have it without. Raises GrammarError for 0 or more than
    ``most``.
    """
    pattern = target.symbol
    texts: dict[str, set[str]] = {}  # by the name without parameters
    with opened(library_path(target.path, files), files) as file:
        for _, _, mangled, text in _mangled(file, pattern):
            if COLD not in mangled and WRITTEN_NAME.fullmatch(text) and is_instance(pattern, text):
                texts.setdefault(function_name(text), set()).add(text)
    names = [name for short, full in texts.items() for name in (full if len(full) > 1 else (short,))]
    if not names:
        raise GrammarError(f"'{target}' matches no function of C++ or Rust of the file")
    if len(names) > most:
        raise GrammarError(too_many_matches(target, len(names), "function", most))
    return [replace(target, symbol=name) for name in sorted(names)]


def _why_not(file: ElfFile, symbol: str, named: list[ElfSymbol], matching: list[ElfSymbol]) -> str:
    """Return why there is no function to probe under this name."""
    here = [one for one in named if one.section != UNDEFINED]
    if any(one.type == IFUNC for one in matching):
        return (
            f"which function is behind {symbol!r} of {file.path} is decided when a program starts (IFUNC): "
            "probe that one, by its own name or offset"
        )
    if any(one in here for one in matching):
        return f"{symbol!r} of {file.path} is data, no function"
    name = symbol.partition("@")[0]
    if here:
        versions = dict.fromkeys(f"{name}@{one.version}" for one in here if one.version)
        return f"{file.path} has no {symbol!r}, only {', '.join(islice(versions, MOST_TOLD)) or name}"
    if named:
        libraries = " or ".join(islice(file.libraries(), MOST_TOLD))
        return f"{file.path} only imports {name!r}: probe it in its library, perhaps {libraries or 'unknown'}"
    if not file.tables:
        return f"{file.path} is stripped of all names: write the offset of {name!r} instead"
    whole = file.section("SHT_SYMTAB") is not None or file.mini is not None
    stripped = "" if whole else f" (it is stripped, and only what it exports has a name{file.mini_fault})"
    return (
        f"{file.path} has no function {name!r}{stripped}{closest(name, islice(file.functions(), MOST_NEAR))}"
    )


def functions_at(path: str, offsets: Iterable[int]) -> dict[int, str]:
    """Return the function at each of these offsets in a file that has one.

    A function with several names has the one that ``find.function_at`` chooses. A million symbols take a
    second. Raises GrammarError, also for a file that takes more than the reader's budget.
    """
    with opened(path) as file:
        places: dict[int, int] = {}  # by address
        for offset in offsets:
            if (address := file.address_of(offset)) is not None:
                places[address] = offset
        ordered = sorted(places)
        found: dict[int, tuple[tuple[int, int], str, str]] = {}
        for table in file.tables:
            for number, (name_at, info, _, section, value, size) in enumerate(table.rows()):
                if info & 15 != FUNC or section == UNDEFINED:
                    continue
                at = bisect_left(ordered, value)
                if at == len(ordered) or ordered[at] >= value + size:
                    continue
                if not (name := table.strings.text(name_at)):
                    continue
                ranked = rank(name, info >> 4), name + table.suffix(number), name
                while at < len(ordered) and ordered[at] < value + size:
                    offset = places[ordered[at]]
                    file.budget.spend(1)
                    found[offset] = min(found.get(offset, ranked), ranked)
                    at += 1
        return {offset: name for offset, (_, _, name) in found.items()}
