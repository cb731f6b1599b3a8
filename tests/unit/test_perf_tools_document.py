"""docs/perf-tools.md has each row that is run, with output that such a run gives, and no other."""

import re

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from tests.perf_tools import ROWS, Row
from tests.perf_tools_document import DOCUMENT, Shown, shown

OPTIONS = set("FdpLvHsh")
"""Of perf-tools' usage."""


def test_each_row_is_there_once_and_in_order() -> None:
    assert [(one.theirs, one.command, one.why) for one in shown()] == [
        (row.theirs, row.command, row.why) for row in ROWS
    ]


@pytest.mark.parametrize(("row", "one"), [*zip(ROWS, shown(), strict=False)], ids=lambda row: row.theirs)
def test_its_output_is_what_the_test_of_the_row_wants(row: Row, one: Shown) -> None:
    assert row.pattern.search(f"{one.output}\n".encode())


def test_every_option_of_perf_tools_has_a_row() -> None:
    assert {option for row in ROWS for option in re.findall(r"kprobe -([A-Za-z])", row.theirs)} == OPTIONS


def test_the_configuration_is_what_is_printed() -> None:
    command = ["trace", "--emit-config", "r:myopen do_sys_openat2 rval=$retval:s32", "rval < 0"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0
    shown_command = (
        "# kprobe-exporter trace --emit-config 'r:myopen do_sys_openat2 rval=$retval:s32' 'rval < 0'\n"
    )
    assert f"{shown_command}{result.stdout}```\n" in DOCUMENT.read_text()
