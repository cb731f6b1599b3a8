"""docs/benchmarks.md: a section for each benchmark, of which a run replaces those that it measured."""

import re
from collections.abc import Mapping, Sequence

HEADING = re.compile(r"^## (?:\d+\. )?(.+)$", re.MULTILINE)

INTRODUCTION = """\
# What it costs

Written by `make bench` (as root, on Debian; all of it takes about 30 minutes), or for some of the tables
`make bench ARGS="throughput start"`. The figures of one table come from one run on one machine: compare
within a table, never between two. The code is in `tests/bench`, a module a table.
"""


def merged(document: str, fresh: Mapping[str, str], order: Sequence[str]) -> str:
    """The document with the sections in ``fresh`` (title to body) put in, numbered by their ``order``.

    A section that was not measured now stays as it is; one whose title is not in ``order`` goes.
    """
    sections = {**_sections(document), **fresh}
    numbered = (
        f"## {number}. {title}\n\n{sections[title].strip()}\n"
        for number, title in enumerate(order, 1)
        if title in sections
    )
    return "\n".join([INTRODUCTION, *numbered])


def _sections(document: str) -> dict[str, str]:
    _, *parts = HEADING.split(document)
    return dict(zip(parts[::2], parts[1::2], strict=True))
