"""Explains why a name is not found and suggests similar ones, in clauses and sentences for the user."""

import platform
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.symbols.listing.query import KINDS, Query
from kprobe_exporter.symbols.lists import text
from kprobe_exporter.symbols.patterns import begin_alike

EXPORTED = b"alias symbol:"

LIKELY = 0.8
"""Similarity, from 0 to 1, at which one name counts as a misspelling of another."""


def refusal(sentence: str) -> ProbeRefused:
    """Return the error with this sentence; adds a full stop if no mark ends it."""
    return ProbeRefused(sentence if sentence.endswith(("?", ".", "…")) else f"{sentence}.")


def no_tracepoint(wish: Query, events: Collection[str]) -> ProbeRefused:
    """Return the error for an unknown tracepoint. ``events`` are all tracepoints, as ``SYSTEM:EVENT``."""
    if not wish.owner and wish.name in _systems(events):
        return refusal(f"'{wish.text}' is a system of tracepoints: write 'tracepoint:{wish.name}:*'")
    return refusal(f"'{wish.text}' matches no tracepoint of this kernel{_near(wish, events)}")


def no_syscall(wish: Query, calls: Collection[str]) -> ProbeRefused:
    """Return the error for a system call that is not among ``calls``, which can be probed."""
    if not calls:
        return refusal(
            f"'{wish.text}': this kernel has no tracepoints of system calls (CONFIG_FTRACE_SYSCALLS)"
        )
    near = closest(wish.name, calls) if wish.is_exact else begin_alike(wish.name, sorted(calls))
    return refusal(f"'{wish.text}' matches no system call that can be probed{near}")


def no_owner(wish: Query, events: Collection[str], modules: Collection[str]) -> ProbeRefused:
    """Return the error for an owner that is no loaded module and has no such tracepoint."""
    systems = _systems(events)
    if wish.owner in systems:
        return no_tracepoint(wish, events)
    kinds = sorted(kind.value for kind in KINDS)
    meant = closest(wish.owner, [*kinds, *systems, *modules]) or f"; kinds are {', '.join(kinds)}"
    return refusal(
        f"'{wish.text}' begins with '{wish.owner}', which is no kind of probe, no system of tracepoints and "
        f"no loaded module{meant}"
    )


def neither(
    wish: Query, events: Collection[str], functions: Iterable[str], error: ProbeRefused
) -> ProbeRefused:
    """Return the error for a name that is no tracepoint, and as a function is refused with ``error``."""
    if wish.is_exact:
        names = {event.partition(":")[2]: event for event in events}
        if near := get_close_matches(wish.name, names, n=1, cutoff=LIKELY):
            return refusal(f"{str(error).rstrip('.?')}; or do you mean '{Kind.TRACEPOINT}:{names[near[0]]}'?")
        return error
    names_alike = begin_alike(wish.name, sorted({*functions, *(event.partition(":")[2] for event in events)}))
    return refusal(f"'{wish.text}' matches no function and no tracepoint that can be probed{names_alike}")


def exporting_module(root: Path, symbol: str) -> str | None:
    """Return the module that exports this symbol, loaded or not; None if the file names none.

    The lines of modules.symbols (depmod(8)) are ``alias symbol:NAME MODULE``, for exported symbols only.
    """
    path = root / "lib/modules" / platform.release() / "modules.symbols"
    wanted = EXPORTED + symbol.encode() + b" "
    try:
        with path.open("rb") as lines:
            found = next((line for line in lines if line.startswith(wanted)), None)
    except OSError:
        return None
    return None if found is None else text(found.split()[-1]).replace("-", "_")


def _systems(events: Iterable[str]) -> set[str]:
    return {event.partition(":")[0] for event in events}


def _near(wish: Query, events: Collection[str]) -> str:
    """Suggest a tracepoint of this name in another system, or of a similar name."""
    there = next((event for event in events if event.partition(":")[2] == wish.name), None)
    if there:
        return f", did you mean '{there}'?"
    if not wish.is_exact:
        return begin_alike(f"{wish.owner}:{wish.name}", sorted(events)) if wish.owner else ""
    if wish.owner:
        return closest(f"{wish.owner}:{wish.name}", events)
    return closest(wish.name, {event.partition(":")[2] for event in events})
