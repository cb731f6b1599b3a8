"""What the generated documents are made of: tables, put into a text that a person wrote."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_PLACE = re.compile(r"^<!-- (\w+) -->$", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Template:
    """A Markdown file of this package, in which a line such as ``<!-- otlp -->`` stands for a table."""

    def __init__(self, name: str) -> None:
        self.text = (Path(__file__).parent / name).read_text()

    def headings(self) -> dict[str, str]:
        """The tables that it has room for, each with the heading that it is below."""
        found = {}
        heading = ""
        for line in self.text.splitlines():
            if match := _HEADING.fullmatch(line):
                heading = match[1]
            elif match := _PLACE.fullmatch(line):
                found[match[1]] = heading
        return found

    def filled(self, tables: Mapping[str, str]) -> str:
        """The document. Raises ValueError unless every table has its place, and every place its table."""
        if differing := self.headings().keys() ^ tables.keys():
            raise ValueError(f"tables without a place, or places without a table: {sorted(differing)}")
        return _PLACE.sub(lambda match: tables[match[1]], self.text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, a row a line."""
    return "\n".join(_row(cells) for cells in (head, ["---"] * len(head), *rows))


def code(text: str) -> str:
    return f"`{text}`"


def anchor(heading: str) -> str:
    """What GitHub makes of a heading, to be linked to."""
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _row(cells: Iterable[str]) -> str:
    # Even in code only a backslash keeps a bar from ending the cell.
    return f"| {' | '.join(' '.join(cell.split()).replace(*BAR) for cell in cells)} |"


BAR = ("|", "\\|")
