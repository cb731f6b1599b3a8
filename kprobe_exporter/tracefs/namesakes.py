"""Functions that share one name: under which name the kernel takes each of them alone."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.tracefs.kallsyms import SITE, Row, parse_functions
from kprobe_exporter.tracefs.lists import TEXT, Lists, Symbol, attempt, symbols

BASE = "_text"
"""Where the kernel begins. A function is at the same distance from it after each boot."""

INIT = ("_sinittext", "_einittext")
"""Between them was the code that only the start needed; its memory is given away, its names stay."""

MOST_TOLD = 8

CANDIDATES = 16
"""Functions of which one is taken to count from, where the address of ``_text`` is hidden."""

HIDDEN = (
    "where /proc/kallsyms shows addresses (to root with CAP_SYSLOG), kprobe:_text+OFFSET names one of them, "
    "OFFSET being its address less that of _text"
)


def singles(target: Target, lists: Lists) -> str:
    """How to name one of the functions of this name, as a clause: the first few that can be named."""
    found = list(named_alone(target, lists))
    if not found:
        return HIDDEN
    more = f" ({len(found) - MOST_TOLD} more)" if len(found) > MOST_TOLD else ""
    return f"name one of them: {', '.join(map(str, found[:MOST_TOLD]))}{more}"


def named_alone(target: Target, lists: Lists) -> Iterator[Target]:
    """A target for each function of the name: ``MOD:SYM`` of a module's, ``_text+OFFSET`` of the kernel's.

    The offset is for this build of the kernel; a probe of the return cannot have one, so it is a kprobe.
    Where kallsyms hides the addresses, tracefs may tell them (since 6.5), though not that of ``_text``:
    then it is counted from the first function whose name is its own.
    """
    listed = attempt(lambda: parse_functions(b"\n".join(map(bytes.strip, lists.addresses())))) or []
    name, times = target.symbol.encode(), Counter(row[1] for row in listed)
    alone = (row for row in listed if row[2] is None and times[row[1]] == 1)
    bases = list(islice(alone, CANDIDATES))
    wanted = {name, BASE.encode(), *(word.encode() for word in INIT), *(row[1] for row in bases)}
    known = attempt(lambda: symbols(lists.symbols(), wanted)) or {}
    found = known.get(target.symbol, [])
    in_modules = Counter(one.module for one in found if one.module)
    for module in sorted(module for module, several in in_modules.items() if several == 1):
        yield Target(target.kind, module, target.symbol)
    base, start, addresses = _from_text(found, known)
    if not start:
        base, start, addresses = _from_listed(name, listed, bases, known)
    elif listed:
        probed = {row[0] for row in listed if row[1] == name}
        addresses = [address for address in addresses if address & ~SITE in probed]
    for address in addresses:
        yield Target(Kind.KPROBE, symbol=base, offset=address - start)


def _from_text(found: list[Symbol], known: dict[str, list[Symbol]]) -> tuple[str, int, list[int]]:
    """What to count from, its address or 0, and the addresses of the kernel's own functions of the name."""
    first, last = (_address(known, word) for word in INIT)
    return (
        BASE,
        _address(known, BASE),
        sorted(
            one.address
            for one in found
            if not one.module and one.kind in TEXT and not first <= one.address < last
        ),
    )


def _from_listed(
    name: bytes, listed: list[Row], bases: list[Row], known: dict[str, list[Symbol]]
) -> tuple[str, int, list[int]]:
    """The same by tracefs' list; the base has one name for one function among all symbols, too."""
    for start, base, _ in bases:
        if len(known.get(base.decode(errors="replace"), ())) == 1:
            return (
                base.decode(),
                start,
                [address for address, other, module in listed if other == name and module is None],
            )
    return BASE, 0, []


def _address(known: dict[str, list[Symbol]], name: str) -> int:
    return known[name][0].address if name in known else 0
