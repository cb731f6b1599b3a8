"""The rows of the tables in docs/kinds.md, and each row as a probe of a configuration."""

import re
from pathlib import Path
from typing import NamedTuple

DOCUMENT = Path(__file__).parents[2] / "docs/kinds.md"

COMMON = ("comm", "tid", "pid", "cpu")
"""The fields that every kind has."""

_TABLE = re.compile(r"^## ([^\n]+)$(?:(?!^## ).)*?((?:^\|[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A row of a table: its number from 1, and its cells by their headings."""

    number: int
    cells: dict[str, str]

    @property
    def name(self) -> str:
        """The first cell, which is unique in the table."""
        return next(iter(self.cells.values())).replace("`", "")

    @property
    def metric(self) -> str:
        """The name of the probe, and the name of its metric without ``_total``."""
        return f"row{self.number}"

    def codes(self, heading: str) -> list[str]:
        """The texts that a cell has in backticks."""
        return _CODE.findall(self.cells[heading])

    def code(self, heading: str) -> str:
        """The text in backticks of a cell that has exactly one."""
        (found,) = self.codes(heading)
        return found


def rows(section: str) -> list[Row]:
    """The rows of the table in a section."""
    tables = dict(_TABLE.findall(DOCUMENT.read_text()))
    lines = ([cell.strip() for cell in line[1:-1].split("|")] for line in tables[section].splitlines())
    headings, _, *found = lines
    return [Row(number, dict(zip(headings, cells, strict=True))) for number, cells in enumerate(found, 1)]


def kinds() -> list[Row]:
    return rows("Kinds of probes")


def decoders() -> list[Row]:
    return rows("Decoders")


def probe_of_kind(row: Row, only: str | None = None) -> str:
    """Return a probe as the row attaches it, with a label for each of its fields except the duration."""
    labels = ", ".join([*COMMON, *(field for field in row.codes("more fields") if field != "duration")])
    return _probe(row, f"attach: {row.code('`attach:`')}", f"[{labels}]", only)


def probe_of_decoder(row: Row, only: str | None = None) -> str:
    """Return a probe with the row's label."""
    return _probe(row, row.code("the probe"), f"{{{row.code('the label')}}}", only)


def _probe(row: Row, attached: str, labels: str, only: str | None) -> str:
    narrowed = f", filter: '{only}'" if only else ""
    counter = f"{{counter: {row.metric}_total, labels: {labels}}}"
    return f"  - {{name: {row.metric}, {attached}{narrowed}, metrics: [{counter}]}}\n"
