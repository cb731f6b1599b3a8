"""Arrays of strings that end with a null pointer, as the argv of execve, read as one text."""

from collections.abc import Mapping
from dataclasses import replace

from kprobe_exporter.config.model import Attach
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.fetch import FetchArg
from kprobe_exporter.model.specs import ProbeSpec, Unsupported

POINTERS = "pointers_"


def with_pointers(
    memory: Mapping[str, FetchArg], attach: Attach, *, pages: bool
) -> tuple[dict[str, FetchArg], dict[str, str]]:
    """Return what is fetched with the pointers of each array, and the names of these by the array's.

    An unreadable string and a null pointer look alike in the record, and behind the null pointer the memory
    is not part of the array. One pointer more than strings tells whether there are further strings. Raises
    GrammarError.
    """
    found, pointers = {**memory}, dict[str, str]()
    for name in sorted(attach.vectors & memory.keys()):
        if not pages:
            raise GrammarError(f"the strings of '{name}' are joined from pages only: write source: auto")
        number = len(pointers) + 1
        while f"{POINTERS}{number}" in {*attach.fetch, *found}:
            number += 1
        pointers[name] = own = f"{POINTERS}{number}"
        count = (memory[name].count or 0) + 1
        found[own] = replace(memory[name], name=own, type="x64", count=count)
    return found, pointers


def as_texts(way: ProbeSpec | Unsupported, pointers: Mapping[str, str]) -> ProbeSpec | Unsupported:
    """Return the way with each array's strings joined in its records. ``pointers`` are named by the array."""
    if isinstance(way, Unsupported) or not pointers:
        return way
    args = tuple(
        arg._replace(kind="vector", guards=(pointers[arg.name],)) if arg.name in pointers else arg
        for arg in way.layout.args
    )
    return replace(way, layout=replace(way.layout, args=args))
