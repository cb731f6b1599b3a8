"""Checks a request against the kernel's lists and a file's symbols, before anything is installed."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.elf import locate
from kprobe_exporter.errors import GrammarError, ProbeRefused, UsageError
from kprobe_exporter.grammar.definition import ProbeKind
from kprobe_exporter.grammar.place import Symbol
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.symbols.functions import SILENT, Answer, Functions, Lists
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.trace.asked import Asked, located
from kprobe_exporter.tracefs.files import MountedTracefs


class Placed(NamedTuple):
    """The request at its place in this kernel, and sentences for the user, shown before the trace starts.

    ``warnings`` say that the probe will never fire. ``notes`` say how it differs from what was written.
    ``refused`` says why the kernel will not accept it; None if no reason is known.
    """

    asked: Asked
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    refused: str | None = None


def placed(asked: Asked, files: MountedTracefs, root: Path = Path("/")) -> Placed:
    """Find the place to attach to. Raises UsageError for a function that is not in its file."""
    if asked.target is not None and asked.definition is not None:
        try:
            return Placed(located(asked, locate(asked.target).offset))
        except GrammarError as error:
            raise UsageError(f"{error.message}.") from None
    function = asked.function
    return Placed(asked) if function is None else _function(asked, function, files, root)


def _function(asked: Asked, function: Target, files: MountedTracefs, root: Path) -> Placed:
    """Find the place of a kernel function, and what the kernel's lists say about it."""
    try:
        target, note = Resolver.of(files, root).place(function)
    except ProbeRefused as error:
        return Placed(asked, refused=f"{function.symbol}: {error}")
    notes = (f"{note}.",) if note else ()
    if target != function:
        place = Symbol(target.symbol, target.module, target.offset)
        asked = replace(asked, target=target) if asked.definition is None else asked.at(place)
    if asked.definition is not None and asked.definition.kind is ProbeKind.FPROBE:
        return Placed(asked, notes)  # the resolver has already refused functions that an fprobe cannot take
    can, why = _answer(target, Lists.of(files.root, root))
    said = f"{target.symbol}: {why}."
    if can is False:
        return Placed(asked, notes, refused=said)
    if not why:
        return Placed(asked, notes)
    silent = target.symbol in SILENT
    return Placed(asked, notes if silent else (*notes, said), (said,) if silent else ())


def _answer(target: Target, lists: Lists) -> Answer:
    """Ask the lists about a probe at the target; for a return, about its function as a whole."""
    offset = target.offset if target.kind is Kind.KPROBE else 0
    return Functions(lists, [target.symbol]).answer(target.module, target.symbol, offset)
