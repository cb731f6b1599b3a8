"""The table of perf-tools' examples in docs/perf-tools.md: read it, and print it again.

``python -m tests.support.perf_tools_document``, as root on a kernel with kprobes, prints the rows.
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.support.perf_tools import ROWS, Came, Row, run

DOCUMENT = Path(__file__).parents[2] / "docs/perf-tools.md"
LINE_END = "<br>"


class Shown(NamedTuple):
    """One row as the document has it, with the ``output`` as lines."""

    theirs: str
    command: str
    output: str
    why: str


def shown() -> list[Shown]:
    """The rows of the document, one a line."""
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `kprobe ")]
    return [_read(re.split(r"(?<!\\)\|", row.strip().strip("|"))) for row in rows]


def written(row: Row, came: Came) -> str:
    """Return the line of a row, with the part of its output that the example is about."""
    found = row.pattern.search(came.output)
    if found is None or came.errors:
        raise AssertionError(f"{row.theirs}: {came}")
    lines = found[0].decode().strip("\n").split("\n")
    first = lines[0].lstrip() if row.prefixed else lines[0]
    output = LINE_END.join(_code(line) if line else "" for line in (first, *lines[1:]))
    return f"| {_code(row.theirs)} | {_code(row.command)} | {output} | {row.why} |"


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`"


def _read(cells: list[str]) -> Shown:
    theirs, command, output, why = (cell.strip().replace("\\|", "|") for cell in cells)
    lines = [line.removeprefix("`").removesuffix("`") for line in output.split(LINE_END)]
    return Shown(theirs.strip("`"), command.strip("`"), "\n".join(lines), why)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        came = run(ROWS, Path(directory))
    for row in ROWS:
        print(written(row, came[row]))
    print(came[ROWS[0]].output.decode(), file=sys.stderr)


if __name__ == "__main__":
    main()
