"""One table of results: aligned for a terminal, and as Markdown."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """What a benchmark found. ``about`` says in a sentence or two what was measured and how.

    The first column of ``head`` and ``rows`` is text, the others are numbers. ``notes`` are sentences
    below the table: what it does not show by itself, and the goals, reached or missed.
    """

    title: str
    about: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The table as a person reads it in a terminal."""
        lines = [self.title, self.about, "", *_aligned(self.head, self.rows)]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines)

    def markdown(self) -> str:
        """What stands below its heading in a document."""
        rule = ("---", *("---:" for _ in self.head[1:]))
        rows = "\n".join(_row(cells) for cells in (self.head, rule, *self.rows))
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join(part for part in (self.about, rows, notes) if part)


def reached(goal: str, value: str, *, ok: bool) -> str:
    """The note on a goal."""
    return f"Goal: {goal}. {'Reached' if ok else 'Missed'}: {value}."


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _aligned(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
