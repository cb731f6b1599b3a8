"""The functions of a program or a library, as attach strings."""

import os
from collections.abc import Iterator

from kprobe_exporter.elf import functions, locate
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.symbols.listing.query import Query, refusal
from kprobe_exporter.symbols.resolve import begin_alike


def file_places(query: Query) -> list[Target]:
    """Return the matching functions of the file ``query.owner``, sorted.

    Names that no attach string can hold, such as those of Go, are left out. Raises GrammarError if the
    file cannot be probed, and ProbeRefused, with a sentence, if no function matches or can be probed.
    """
    kind = query.kind or Kind.UPROBE
    path = os.path.abspath(query.owner)  # noqa: PTH100 - resolve() would follow a library's link
    parse_target(f"{kind}:{path}:main")
    names = [*functions(path)]
    if query.is_exact:
        found = [query.name]
        _require_locatable(kind, path, query.name)
    else:
        matches = query.matcher()
        found = [*_fit(path, (name for name in names if matches(path, name)))]
    if not found:
        near = begin_alike(query.name, sorted(names))
        raise refusal(f"'{query.name}' matches none of the {len(names)} functions of {path}{near}")
    if kind is not Kind.UPROBE and not query.is_exact:
        _require_locatable(kind, path, found[0])
    return [Target(kind, path=path, symbol=name) for name in sorted(found)]


def _fit(path: str, names: Iterator[str]) -> Iterator[str]:
    """Yield the names that an attach string can hold."""
    for name in names:
        try:
            parse_target(f"{Kind.UPROBE}:{path}:{name}")
        except GrammarError:
            continue
        yield name


def _require_locatable(kind: Kind, path: str, name: str) -> None:
    """Raise ProbeRefused if a probe of this kind cannot be set; for a call, if a half of it cannot."""
    target = parse_target(f"{kind}:{path}:{name}")
    try:
        for half in target.halves if kind is Kind.UCALL else (target,):
            locate(half)
    except GrammarError as error:
        raise refusal(f"'{target}' cannot be probed: {error.message}") from None
