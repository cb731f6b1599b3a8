"""A benchmark's table: printed for a person, and kept in docs/benchmarks.md."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

HEADING = re.compile(r"^## (\d+)\. .*$", re.MULTILINE)

INTRODUCTION = """# Benchmarks

`make bench` measures and writes these tables; `make bench ARGS="throughput start"` measures some and keeps
the others. The figures of one table come from one run; compare within it, not across machines.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """What was measured: ``what`` says how, ``conditions`` on what machine, ``notes`` what it means."""

    number: int
    title: str
    what: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    conditions: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def text(self) -> str:
        """For a terminal: the first column to the left, numbers to the right."""
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = [f"{self.number}. {self.title}", self.conditions, ""]
        for row in (self.head, *self.rows):
            cells = [
                cell.ljust(width) if n == 0 else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *(f"- {note}" for note in self.notes), ""])

    def markdown(self) -> str:
        """A section of docs/benchmarks.md."""
        rule = ["---", *["---:"] * (len(self.head) - 1)]
        rows = ["| " + " | ".join(row) + " |" for row in (self.head, rule, *self.rows)]
        parts = [f"## {self.number}. {self.title}", self.what, self.conditions, "\n".join(rows)]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(part for part in parts if part) + "\n"


def merge(document: str, tables: Sequence[Table]) -> str:
    """The document with these tables in the place of those of their numbers, in order."""
    sections = {}
    starts = [*HEADING.finditer(document)]
    for found, following in zip(starts, [*starts[1:], None], strict=True):
        end = following.start() if following else len(document)
        sections[int(found[1])] = document[found.start() : end].rstrip() + "\n"
    sections |= {table.number: table.markdown() for table in tables}
    return "\n".join([INTRODUCTION, *(section for _, section in sorted(sections.items()))])
