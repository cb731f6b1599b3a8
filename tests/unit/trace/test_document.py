"""docs/perf-tools.md has the rows that tests/kernel/test_trace_examples.py runs."""

import pytest

from tests.perf_tools import ROWS, Row
from tests.perf_tools_document import Shown, shown


def test_it_has_each_row_with_its_command_and_the_difference() -> None:
    assert [(one.theirs, one.command, one.why) for one in shown()] == [
        (row.theirs, row.command, row.why) for row in ROWS
    ]


@pytest.mark.parametrize(("row", "one"), list(zip(ROWS, shown(), strict=True)), ids=lambda one: one.theirs)
def test_its_output_is_what_the_row_asks_for(row: Row, one: Shown) -> None:
    before = "  " if row.prefixed else ""
    assert row.pattern.search(f"{before}{one.output}\n".encode())
