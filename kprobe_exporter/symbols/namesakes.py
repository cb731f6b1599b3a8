"""Functions that share a name: the unique way to name each one to the kernel."""

from collections import Counter
from collections.abc import Iterator

from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.symbols.kallsyms import SITE, TEXT, Row, parse_functions
from kprobe_exporter.symbols.lists import ListedSymbol, Lists, attempt, symbols

BASE = "_text"
"""The symbol at which the kernel begins. A function's distance from it is the same after each boot."""

INIT = ("_sinittext", "_einittext")
"""Symbols around the code that only boot needs; its memory is freed, and its names stay in kallsyms."""

MOST_TOLD = 8

CANDIDATES = 16
"""First functions listed, one of which is the base of offsets if the address of ``_text`` is hidden."""

HIDDEN = (
    "where /proc/kallsyms shows addresses (to root with CAP_SYSLOG), kprobe:_text+OFFSET names one of them, "
    "OFFSET being its address less that of _text"
)


def singles(target: Target, lists: Lists) -> str:
    """Return a clause that tells how to name one of the functions of this name, with the first few."""
    found = list(named_alone(target, lists))
    if not found:
        return HIDDEN
    more = f" ({len(found) - MOST_TOLD} more)" if len(found) > MOST_TOLD else ""
    return f"name one of them: {', '.join(map(str, found[:MOST_TOLD]))}{more}"


def named_alone(target: Target, lists: Lists) -> Iterator[Target]:
    """Yield a target for each function of the name: ``MOD:SYM`` in a module, ``_text+OFFSET`` in the kernel.

    The offset holds for this build of the kernel. A return probe cannot have one, so it is a kprobe. If
    kallsyms hides the addresses, tracefs may show them (since 6.5), though not that of ``_text``: then
    the offset is from the first function whose name is unique.
    """
    lines, name = attempt(lambda: [*map(bytes.strip, lists.addresses())]) or [], target.symbol.encode()
    listed = [row for row in parse_functions(_those_with(name, lines)) if row[1] == name]
    bases = [row for row in parse_functions(b"\n".join(lines[:CANDIDATES])) if row[2] is None]
    wanted = {name, BASE.encode(), *(word.encode() for word in INIT), *(row[1] for row in bases)}
    known = attempt(lambda: symbols(lists.symbols(), wanted)) or {}
    found = known.get(target.symbol, [])
    in_modules = Counter(one.module for one in found if one.module)
    for module in sorted(module for module, several in in_modules.items() if several == 1):
        yield Target(target.kind, module, target.symbol)
    base, start, addresses = BASE, _address(known, BASE), _own(found, known)
    if not start:
        base, start = next(((row[1].decode(), row[0]) for row in bases if _is_alone(row, known)), ("", 0))
        addresses = [address for address, _, module in listed if module is None and 0 < start <= address]
    elif lines:
        probed = {address for address, _, _ in listed}
        addresses = [address for address in addresses if address & ~SITE in probed]
    for address in addresses:
        yield Target(Kind.KPROBE, symbol=base, offset=address - start)


def _those_with(name: bytes, lines: list[bytes]) -> bytes:
    """Return the few lines that contain the name, because parsing all of them is slow."""
    return b"\n".join(line for line in lines if name in line)


def _is_alone(row: Row, known: dict[str, list[ListedSymbol]]) -> bool:
    return len(known.get(row[1].decode(errors="replace"), ())) == 1


def _own(found: list[ListedSymbol], known: dict[str, list[ListedSymbol]]) -> list[int]:
    """Return the sorted addresses of the functions of the kernel itself, without its boot code."""
    first, last = (_address(known, word) for word in INIT)
    functions = (one.address for one in found if not one.module and one.kind in TEXT)
    return sorted(address for address in functions if not first <= address < last)


def _address(known: dict[str, list[ListedSymbol]], name: str) -> int:
    return known[name][0].address if name in known else 0
