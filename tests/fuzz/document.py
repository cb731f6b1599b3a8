"""The table of fuzzing results, for a terminal and between its markers in docs/reliability.md."""

import re
from collections.abc import Iterable, Sequence

from tests.bench.table import Table
from tests.fuzz.run import Result

START, END = "<!-- what `make fuzz` wrote -->", "<!-- the end of it -->"

HEAD = ("target", "inputs", "seconds", "accepted", "refused", "crashes", "slowest, ms", "first seed", "on")

ABOUT = (
    "Each target is fed with real material that was changed by a seeded generator, an input for each seed, "
    "in a process of its own. Refused is what got the documented answer to wrong bytes, or nothing was found "
    "in; a crash is anything else: another exception, a signal, two parsers that disagree, 30 s without an "
    "answer. In the target `cost` a piece of an input is repeated up to 256 KiB. More processor time or "
    "memory than its reader's line for this size is a crash, too."
)

TITLE = "# Reliability\n\nWhat was done to the agent, and what came of it.\n"
SECTION = f"\n## Fuzzing\n\n{START}\n{END}\n"


def row(result: Result, day: str) -> tuple[str, ...]:
    """The row of one target."""
    return (
        result.target,
        f"{result.inputs:,}",
        f"{result.seconds:.0f}",
        f"{result.accepted:,}",
        f"{result.refused:,}",
        f"{len(result.crashes):,}",
        f"{result.slowest * 1000:,.1f}",
        str(result.first),
        day,
    )


def table(rows: Iterable[tuple[str, ...]]) -> Table:
    return Table("Fuzzing", ABOUT, HEAD, tuple(rows))


def merged(document: str, fresh: Sequence[tuple[str, ...]], order: Sequence[str]) -> str:
    """The document with these rows in its table; rows of targets that were not fuzzed now are kept.

    The rest of the document is unchanged. A document without markers gets a section with them.
    """
    whole = document if START in document else (document or TITLE) + SECTION
    before, _, rest = whole.partition(START)
    inside, _, after = rest.partition(END)
    rows = {cells[0]: cells for cells in (*_rows(inside), *fresh)}
    body = table(rows[name] for name in order if name in rows).markdown()
    return f"{before}{START}\n\n{body}\n\n{END}{after}"


def _rows(text: str) -> list[tuple[str, ...]]:
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [tuple(line.split(" | ")) for line in lines[2:]]
