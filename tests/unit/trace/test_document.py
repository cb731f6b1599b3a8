"""docs/perf-tools.md has exactly the rows that are run, with output that such a run gives."""

import re

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from tests.support.perf_tools import ROWS, Row
from tests.support.perf_tools_document import DOCUMENT, Shown, shown

OPTIONS = set("FdpLvHsh")
"""The options in perf-tools' usage."""


def test_it_has_each_row_with_its_command_and_the_difference() -> None:
    assert [(one.theirs, one.command, one.why) for one in shown()] == [
        (row.theirs, row.command, row.why) for row in ROWS
    ]


@pytest.mark.parametrize(("row", "one"), list(zip(ROWS, shown(), strict=False)), ids=lambda one: one.theirs)
def test_its_output_is_what_the_row_asks_for(row: Row, one: Shown) -> None:
    assert row.pattern.search(f"{one.output}\n".encode())


def test_every_option_of_perf_tools_has_a_row() -> None:
    assert {option for row in ROWS for option in re.findall(r"kprobe -([A-Za-z])", row.theirs)} == OPTIONS


def test_its_configuration_is_what_is_printed() -> None:
    definition, filter_text = "r:myopen do_sys_openat2 rval=$retval:s32", "rval < 0"
    result = CliRunner().invoke(main, ["trace", "--emit-config", definition, filter_text])
    assert result.exit_code == 0
    block = f"# kprobe-exporter trace --emit-config '{definition}' '{filter_text}'\n{result.stdout}```\n"
    assert block in DOCUMENT.read_text()
