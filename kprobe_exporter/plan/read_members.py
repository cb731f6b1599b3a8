"""Paths into structures become plain memory reads by the kernel's types; how filters compare such values."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.config.model import Attach, Reading, WrittenPath
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.expression import ANYWHERE, FetchSite
from kprobe_exporter.grammar.fetch import LONGEST, FetchArg, inner_path, parse_fetch
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import Comparison, Node, Operator, logical
from kprobe_exporter.grammar.lexis import part_of
from kprobe_exporter.grammar.members import parse_path
from kprobe_exporter.model.values import HIGHEST_ADDRESS, LOWEST_ADDRESS

GUARD = "pointer_"


@dataclass
class _Guards:
    """The pointers through which values are read, each fetched once as an argument of its own."""

    taken: Mapping[str, str]
    names: dict[str, str] = field(default_factory=dict)

    def name(self, expression: str) -> str:
        """Return the name of the argument that fetches a pointer."""
        if expression not in self.names:
            number = len(self.names) + 1
            while f"{GUARD}{number}" in (*self.taken, *self.names.values()):
                number += 1
            self.names[expression] = f"{GUARD}{number}"
        return self.names[expression]


Root = Callable[[str], str]
"""Returns the kernel's expression of a path's root, ``$arg1`` for a parameter; raises GrammarError."""


def resolved(
    attach: Attach,
    types: KernelTypes,
    root: Root,
    type_of: Callable[[str], int | None],
    site: FetchSite = ANYWHERE,
) -> Attach:
    """Return the same with memory reads in place of paths.

    ``type_of`` returns the type's number of a path's root, None where it is not known. The pointers on the
    way are fetched too: behind a null pointer, the kernel leaves in a number what was there before
    (process_fetch_insn_bottom() of kernel/trace/trace_probe_tmpl.h returns before it stores anything).
    Raises GrammarError, in a sentence with the file, the line and the column.
    """
    guards = _Guards(attach.fetch)
    fetch, read = {**attach.fetch}, {**attach.read}
    module = attach.target.module
    one = partial(_one, module=module, types=types, root=root, type_of=type_of, guards=guards, site=site)
    for name, paths in attach.paths.items():
        arg, read[name] = _first(paths, one)
        fetch[name] = arg.body
    fetch |= {name: f"{expression}:x64" for expression, name in guards.names.items()}
    found = replace(attach, fetch=fetch, read=read, paths={})
    return replace(found, filter=_compared(found))


_Found: TypeAlias = tuple[FetchArg, Reading]


def _first(paths: tuple[WrittenPath, ...], read: Callable[[WrittenPath], _Found]) -> _Found:
    """Return the first of the alternatives of one value that the kernel's types have."""
    refused = []
    for path in paths:
        try:
            return read(path)
        except GrammarError as error:
            refused.append(f"{path.at(error.column)}{error.message}")
    raise GrammarError("; ".join(refused))


def _one(
    path: WrittenPath,
    module: str,
    types: KernelTypes,
    root: Root,
    type_of: Callable[[str], int | None],
    guards: _Guards,
    site: FetchSite,
) -> _Found:
    """Return the argument that reads a path. The value may be an address from which more is read."""
    arg = parse_fetch(path.text)
    before, inner, after = inner_path(arg.expression)
    with part_of(path.text, len(before)):
        start = root(parse_path(inner).root)
        member = types.member(inner, "x64" if before else arg.type, module, type_of)
    pointers = member.reads(start)
    found = replace(arg, expression=f"{before}{pointers[-1]}{after}")
    if not before and not arg.type:
        found = replace(found, type=member.fetch, count=member.length)
    if len(found.body) > LONGEST:
        raise GrammarError(f"the kernel takes {LONGEST} characters, and this becomes {found.body}")
    guarding = pointers if before else pointers[:-1]
    read = tuple(map(guards.name, guarding))
    reading = Reading(0, read) if before else Reading(member.network, read, member.type)
    return parse_fetch(found.body, site), reading


def where_all_are_there(attach: Attach) -> str | None:
    """Return the filter for hist triggers: the probe's own, and that no pointer on the way is null."""
    guards = dict.fromkeys(guard for reading in attach.read.values() for guard in reading.guards)
    parts = [*_present(guards), *([parse_filter(attach.filter)] if attach.filter else [])]
    return logical("&&", *parts).render() if guards else attach.filter


def unlike(attach: Attach) -> set[str]:
    """Return the arguments that are not keys of hist triggers, which would show them in network byte
    order."""
    network = {name for name, reading in attach.read.items() if reading.network}
    return network.union(*(reading.guards for reading in attach.read.values()))


def members_note(fetch: Mapping[str, str], attach: Attach) -> str:
    """Return the clause that says how members are read: ``members: port=+12($arg1):u16``."""
    members = [f"{name}={fetch[name]}" for name in attach.read]
    return f"members: {', '.join(members)}" if members else ""


def _compared(attach: Attach) -> str | None:
    """Return the kernel's filter, with values in network byte order and pointers taken care of."""
    if attach.filter is None or not attach.read:
        return attach.filter
    return parse_filter(attach.filter).change(lambda part: _part(part, attach)).render()


def _part(part: Comparison, attach: Attach) -> Node:
    reading = attach.read.get(part.name)
    if reading is None:
        return part
    if reading.network:
        part = _in_network_order(part, reading.network)
    if part.operator != "!=":
        return logical("&&", *_present(reading.guards), part)
    missing = [_bound(name, "<", LOWEST_ADDRESS) for name in reading.guards]
    missing += [_bound(name, ">", HIGHEST_ADDRESS) for name in reading.guards]
    return logical("||", *missing, part)


def _present(guards: Iterable[str]) -> list[Node]:
    """Return the conditions that these pointers are addresses (model/values.py: is_address)."""
    limits: tuple[tuple[Operator, int], ...] = ((">=", LOWEST_ADDRESS), ("<=", HIGHEST_ADDRESS))
    return [_bound(name, operator, limit) for name in guards for operator, limit in limits]


def _bound(name: str, operator: Operator, value: int) -> Comparison:
    return Comparison(name, operator, value, str(value))


def _in_network_order(part: Comparison, size: int) -> Comparison:
    """Return the comparison with the number as memory has it, in which only equality can be seen."""
    value = part.value
    if not isinstance(value, int) or not 0 <= value < 1 << 8 * size:
        raise GrammarError(f"'{part.name}' has {size} bytes, so it is never {part.written or value}")
    if part.operator not in ("==", "!="):
        raise GrammarError(
            f"'{part.name}' is in network byte order, in which the kernel compares only by == and !=: "
            f"write {part.name} {part.operator} {part.written or value} as a metric's `where`"
        )
    number = int.from_bytes(value.to_bytes(size, "big"), sys.byteorder)
    return replace(part, value=number, written=str(number))
