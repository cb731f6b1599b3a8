"""The part of the kernel that a probe needs and that was not built in, for any configuration.

The reason that planning has for each alternative tells a writer of a configuration what to change. A user of
a terminal tool can change nothing there, and learns from this module what the kernel lacks.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from kprobe_exporter.config.model import Attach
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.symbols.functions import Answer
from kprobe_exporter.tracefs.define import not_built

HasFile: TypeAlias = Callable[[str], bool]
"""Returns whether tracefs has a file."""

ON_KPROBES = (Kind.KPROBE, Kind.KRETPROBE, Kind.CALL)
"""The kinds of targets that are defined in kprobe_events."""

MEMORY_READS = ("+", "-")
"""How a fetch argument begins that reads memory, behind a field or a register."""


def lacked(alternatives: Iterable[Attach], has: HasFile, eprobes: Answer) -> str | None:
    """Return a sentence about what the kernel lacks for every alternative, None if one lacks nothing.

    The sentence is that of the first alternative, which is the preferred one.
    """
    found = [_lacked_by(attach, has, eprobes) for attach in alternatives]
    return found[0] if all(found) and found else None


def _lacked_by(attach: Attach, has: HasFile, eprobes: Answer) -> str | None:
    """Return what the kernel lacks for an alternative: for any of the events of a call or a pair."""
    for one in attach.single:
        if file := _definitions_file(one.target.kind):
            if not has(file):
                return not_built(file)
        elif eprobes.can is False and _reads_memory(one):
            return eprobes.why
    return None


def _definitions_file(kind: Kind) -> str | None:
    """Return the file for definitions of this kind; None of an event that is built into the kernel."""
    if kind.in_file:
        return "uprobe_events"
    return "kprobe_events" if kind in ON_KPROBES else None


def _reads_memory(attach: Attach) -> bool:
    """Whether an event reads behind a field, as only an eprobe does."""
    return bool(attach.paths) or any(text.startswith(MEMORY_READS) for text in attach.fetch.values())
