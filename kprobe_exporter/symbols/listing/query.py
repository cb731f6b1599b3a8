"""Queries for places: ``tcp_*``, ``sched:*``, ``kprobe:ext4:*``, ``uprobe:/bin/bash:read*``."""

from collections.abc import Callable
from typing import NamedTuple

from kprobe_exporter.grammar.target import Kind, is_pattern
from kprobe_exporter.symbols.patterns import matcher

KINDS = frozenset(kind for kind in Kind if kind is not Kind.PAIR)
"""The kinds of a query. A pair is written as a mapping and has no name of its own."""


class Place(NamedTuple):
    """A place for a probe; ``str()`` is its attach string.

    ``owner`` is a function's module, empty for the kernel itself; a tracepoint's system; a file's path.
    """

    kind: Kind
    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.owner}:{self.name}" if self.owner else f"{self.kind}:{self.name}"


class Query(NamedTuple):
    """A shell pattern over places. ``kind`` is None for any kind, ``owner`` empty for any owner."""

    text: str
    kind: Kind | None
    owner: str
    name: str

    @property
    def is_exact(self) -> bool:
        """Whether it names one place, without a pattern."""
        return not is_pattern(self.owner + self.name)

    def matcher(self) -> Callable[[str, str], bool]:
        """Return a function that tells whether an owner and a name match, by the shell's rules."""
        owned = matcher(self.owner) if self.owner else lambda owner: True
        named = matcher(self.name) if self.name != "*" else lambda name: True
        return lambda owner, name: named(name) and owned(owner)


def parse_query(text: str) -> Query:
    """Parse a pattern, ``[KIND:][OWNER:]NAME``; an empty part matches all.

    The owner of a function in a file is its path, which begins with ``/``.
    """
    word, colon, rest = text.partition(":")
    kind = Kind(word) if colon and word in KINDS else None
    rest = rest if kind else text
    if kind and kind.in_file and ":" not in rest:
        return Query(text, kind, rest, "*")
    owner, _, name = rest.rpartition(":")
    return Query(text, kind, owner, name or "*")
