"""Tells whether and by which name a function can be probed, from the kernel's lists: no probe is tried."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from kprobe_exporter.grammar.lexis import misspelt
from kprobe_exporter.grammar.place import BASES
from kprobe_exporter.grammar.target import SYSTEM_CALL, Kind, Target
from kprobe_exporter.symbols.lists import (
    SITE,
    TEXT,
    ListedSymbol,
    Lists,
    Row,
    attempt,
    blacklisted_areas,
    exporting_module,
    installed_modules,
    names_at,
    names_between,
    parse_functions,
    text,
)
from kprobe_exporter.symbols.successors import successors

SILENT = {"do_sys_open": "open(2) does not go through it"}
"""Functions that still exist and can be probed, but never fire; with the reason."""

EPROBES = ("eprobe_register", "eprobe_dyn_event_create")
"""Functions of kernel/trace/trace_eprobe.c that are called through pointers, and so never inlined."""

COUNTS_NAMES = "number_of_same_symbols"
"""In kernel/trace/trace_kprobe.c of kernels that refuse an ambiguous name; older ones take one of them."""

BASE = "_text"
"""The symbol at which the kernel begins. A function's distance from it is the same after each boot."""

STARTS = (BASE, "_stext")
"""The symbols at which the kernel and its code begin; 6.1 of arm64 lists only the second."""

INIT = ("_sinittext", "_einittext")
"""Symbols around the code that only boot needs; its memory is freed, and its names stay in kallsyms."""

MOST_TOLD = 8

CANDIDATES = 16
"""First functions listed, one of which is the base of offsets if the address of ``_text`` is hidden."""

HIDDEN = (
    "where /proc/kallsyms shows addresses (to root with CAP_SYSLOG), kprobe:_text+OFFSET names one of them, "
    "OFFSET being its address less that of _text"
)


class Answer(NamedTuple):
    """Whether it can be done, None if only a trial can tell; and a clause for the user about it."""

    can: bool | None
    why: str = ""


class Functions:
    """The facts of the lists about the functions ``names``. A list that cannot be read is kept as None."""

    def __init__(self, lists: Lists, names: Iterable[str]) -> None:
        self._lists = lists
        self.names = set(names)
        bases = (name.partition(".")[0] for name in self.names)
        later = chain.from_iterable(map(successors, self.names))
        all_names = chain(self.names, bases, later, EPROBES, (COUNTS_NAMES,))
        self._traceable: Mapping[str, list[str]] | None = lists.functions
        self._symbols = lists.named(all_names)

    def eprobes(self) -> Answer:
        """Whether this kernel was built with eprobes. The README of tracefs does not prove it."""
        if self._symbols is None:
            return Answer(None, "as an eprobe if this kernel has them")
        if any(name in self._symbols for name in EPROBES):
            return Answer(True)
        return Answer(False, "this kernel was built without eprobes (CONFIG_EPROBE_EVENTS)")

    def variable(self, symbol: str) -> Answer:
        """Whether the kernel finds a symbol, one of ``names``. Saved kernels do not list those of data."""
        if symbol in (self._symbols or ()):
            return Answer(True)
        return Answer(None, f"only trying tells whether the kernel has the symbol {symbol}")

    def answer(self, module: str, symbol: str, offset: int) -> Answer:
        """Whether a kprobe can be set at the place; ``module`` is empty if none was given."""
        if module and module not in (self._lists.loaded or ()):
            return self._absent_module(module, symbol)
        found = self._function(module, symbol)
        if offset and (found.can is not False or symbol in BASES):
            return Answer(None, "only trying tells whether an instruction begins at this offset")
        return found

    def _function(self, module: str, symbol: str) -> Answer:
        # Without a module the kernel searches everywhere.
        places = [home for home in (self._traceable or {}).get(symbol, ()) if module in ("", home)]
        known = [found for found in (self._symbols or {}).get(symbol, ()) if module in ("", found.module)]
        if not places and not known:
            return self._unknown(module, symbol)
        if (several := max(len(places), len(known))) > 1:
            refused = self._symbols is not None and COUNTS_NAMES in self._symbols
            what = "this kernel refuses to choose" if refused else "the kernel may refuse to choose"
            mend = singles(Target(Kind.KPROBE, module, symbol), self._lists)
            return Answer(
                False if refused else None, f"{several} functions have this name, and {what}: {mend}"
            )
        if symbol.encode() in (self._lists.blacklisted or ()):
            return Answer(False, "the kernel keeps kprobes off it (/sys/kernel/debug/kprobes/blacklist)")
        if not places and symbol in self._of_boot:
            return Answer(False, "it ran at boot alone, and its memory has been freed")
        if places and symbol in SILENT and (successor := self._successor(symbol)):
            return Answer(True, f"it will never fire: {SILENT[symbol]}, name {successor}")
        return Answer(True) if places else self._not_traceable(symbol, known[0])

    def _not_traceable(self, symbol: str, found: ListedSymbol) -> Answer:
        """Answer for a symbol that is not in the list of traceable functions, or if there is no such list."""
        if found.kind not in TEXT:
            return Answer(False, "it is data of the kernel, and no function")
        if self._traceable is None:
            return Answer(None, "only trying tells: this kernel does not list what can be probed")
        base = symbol.partition(".")[0]
        if base in self._traceable:  # the rule of within_notrace_func(), kernel/trace/trace_kprobe.c
            return Answer(True, f"it is a part of {base} that the compiler set apart")
        if not found.address:
            return Answer(
                None, "only trying tells: it is notrace, or another name of a function that can be probed"
            )
        if alias := self._aliases.get(found.address):
            return Answer(True, f"it is also called {alias}, and may be shown so")
        return Answer(False, "it is marked notrace, and kprobes refuse such functions")

    @cached_property
    def _aliases(self) -> dict[int, str]:
        """For functions that are not listed under their own name, the alias that is, by address."""
        listed = self._traceable or {}
        addresses = {
            found.address
            for name, places in (self._symbols or {}).items()
            if name not in listed
            for found in places
        }
        names = attempt(lambda: names_at(self._lists.symbols(), addresses)) or {}
        return {address: text(name) for name, address in names.items() if text(name) in listed}

    @cached_property
    def _of_boot(self) -> set[str]:
        """Those of the names that are in the code for boot."""
        wanted = {name.encode() for name in self.names}
        return attempt(lambda: names_between(self._lists.symbols(), INIT, wanted)) or set()

    def _absent_module(self, module: str, symbol: str) -> Answer:
        """The kernel accepts any symbol of a module that is not loaded (kernel/trace/trace_kprobe.c)."""
        note = f"armed when the module '{module}' is loaded"
        if "" in (self._traceable or {}).get(symbol, ()):
            note += f"; the kernel itself has a function of this name, without '{module}:'"
        return Answer(True, note)

    def _unknown(self, module: str, symbol: str) -> Answer:
        if self._traceable is None and self._symbols is None:
            return Answer(None, "only trying tells: the kernel's lists of functions cannot be read")
        elsewhere = (self._traceable or {}).get(symbol, ())
        if module and elsewhere:
            where = "the kernel itself" if "" in elsewhere else f"the module '{min(elsewhere)}'"
            return Answer(False, f"the module '{module}' has no such function: it is one of {where}")
        owner = f"the module '{module}'" if module else "this kernel"
        instead = self._instead(module, symbol)
        return Answer(False, f"{owner} has no such function, or the compiler inlined it{instead}")

    def _instead(self, module: str, symbol: str) -> str:
        """Suggest what to write for a name that is in no list."""
        if successor := self._successor(symbol):
            return f": {successor} does its work today"
        if symbol.startswith(SYSTEM_CALL) and (near := misspelt(symbol, self._lists.system_calls)):
            return near
        names = attempt(lambda: list(similar(self._lists.traceable(), module, symbol))) or []
        made = next((name for name in names if name.startswith(f"{symbol}.")), None)
        if made is not None:
            return f": the compiler made '{made}' of it"
        near = misspelt(symbol, names)
        return near if module else self._perhaps_not_loaded(symbol, near)

    def _perhaps_not_loaded(self, symbol: str, near: str) -> str:
        """Return the suggestion ``near`` behind the module that has the function, as far as it is known."""
        if owner := self._exporting(symbol):
            there = f"'kprobe:{owner}:{symbol}' is armed when it is"
            return f"; the module '{owner}' has one and is not loaded, {there}"
        if owner := self._namesake(symbol):
            waits = f"kprobe:{owner}:{symbol} waits for it{near}"
            return f", or it is one of the module '{owner}', which is not loaded: {waits}"
        return f", or its module is not loaded{near or f': kprobe:MODULE:{symbol} waits for it'}"

    def _exporting(self, symbol: str) -> str | None:
        """Return the module that exports the function and is not loaded."""
        if self._lists.loaded is None:
            return None
        module = attempt(lambda: exporting_module(self._lists.exports(), symbol))
        return None if module in self._lists.loaded else module

    def _namesake(self, symbol: str) -> str | None:
        """Return the module that is installed, not loaded, and with whose name the function's name begins."""
        if self._lists.loaded is None:
            return None
        absent = (attempt(lambda: installed_modules(self._lists.installed())) or set()) - self._lists.loaded
        return max((name for name in absent if symbol.startswith(f"{name}_")), key=len, default=None)

    def _successor(self, symbol: str) -> str | None:
        return next((name for name in successors(symbol) if name in (self._traceable or {})), None)


def similar(lines: Iterable[bytes], module: str, symbol: str) -> Iterator[str]:
    """Yield names that begin or end like ``symbol`` and are about as long, and its compiler-made forms.

    Comparing is slow, and there are 60,000 names.
    """
    wanted = symbol.encode()
    start, end, made = wanted[:2], wanted[-3:], wanted + b"."
    for line in lines:
        name, _, rest = line.strip().partition(b" ")
        if module and rest.strip(b"[]").decode(errors="replace") != module:
            continue
        near = abs(len(name) - len(wanted)) <= 1 and (name.startswith(start) or name.endswith(end))
        if near or name.startswith(made):
            yield text(name)


def singles(target: Target, lists: Lists) -> str:
    """Return a clause that tells how to name one of the functions of this name, with the first few."""
    found = list(named_alone(target, lists))
    if not found:
        return HIDDEN
    more = f" ({len(found) - MOST_TOLD} more)" if len(found) > MOST_TOLD else ""
    return f"name one of them: {', '.join(map(str, found[:MOST_TOLD]))}{more}"


def named_alone(target: Target, lists: Lists) -> Iterator[Target]:
    """Yield a target for each function of the name: ``MOD:SYM`` in a module, ``_text+OFFSET`` in the kernel,
    ``_stext+OFFSET`` where kallsyms does not list ``_text``.

    The offset holds for this build of the kernel. Functions off which the kernel keeps kprobes are omitted,
    if this process may see their addresses. A return probe cannot have one, so it is a kprobe. If kallsyms
    hides the addresses, tracefs may show them (since 6.5), though not that of ``_text``: then the offset is
    from the first function whose name is unique.
    """
    lines, name = attempt(lambda: [*map(bytes.strip, lists.addresses())]) or [], target.symbol.encode()
    some = b"\n".join(line for line in lines if name in line)  # as parsing all of them is slow
    listed = [row for row in parse_functions(some) if row[1] == name]
    bases = [row for row in parse_functions(b"\n".join(lines[:CANDIDATES])) if row[2] is None]
    known = lists.named([target.symbol, *STARTS, *INIT, *(text(row[1]) for row in bases)]) or {}
    found = known.get(target.symbol, [])
    in_modules = Counter(one.module for one in found if one.module)
    for module in sorted(module for module, several in in_modules.items() if several == 1):
        yield Target(target.kind, module, target.symbol)
    base = next((word for word in STARTS if _address(known, word)), "")
    start, addresses = _address(known, base), _own(found, known)
    if not start:
        base, start = next(((row[1].decode(), row[0]) for row in bases if _is_alone(row, known)), ("", 0))
        addresses = [address for address, _, module in listed if module is None and 0 < start <= address]
    elif lines:
        probed = {address for address, _, _ in listed}
        addresses = [address for address in addresses if address & ~SITE in probed]
    # The kernel has whole sections in it, such as those of entry from user space. On arm64 some functions
    # there share their names with others that can be probed.
    areas = attempt(lambda: blacklisted_areas(lists.blacklist())) or []
    for address in addresses:
        if any(address in area for area in areas):
            continue
        yield Target(Kind.KPROBE, symbol=base, offset=address - start)


def _is_alone(row: Row, known: dict[str, list[ListedSymbol]]) -> bool:
    return len(known.get(row[1].decode(errors="replace"), ())) == 1


def _own(found: list[ListedSymbol], known: dict[str, list[ListedSymbol]]) -> list[int]:
    """Return the sorted addresses of the functions of the kernel itself, without its boot code."""
    first, last = (_address(known, word) for word in INIT)
    functions = (one.address for one in found if not one.module and one.kind in TEXT)
    return sorted(address for address in functions if not first <= address < last)


def _address(known: dict[str, list[ListedSymbol]], name: str) -> int:
    return known[name][0].address if name in known else 0
