"""Every example and option of perf-tools' `kprobe` works with real events, as docs/perf-tools.md shows."""

import platform
from collections.abc import Mapping

import pytest

from tests.support.perf_tools import ROWS, Came, Row, run
from tests.support.system_calls import only_x86

pytestmark = pytest.mark.needs("kprobe_events")


HERE = [row for row in ROWS if platform.machine() == "x86_64" or "%" not in row.command]


@pytest.fixture(scope="module")
def came(tmp_path_factory: pytest.TempPathFactory, tracefs: object) -> Mapping[Row, Came]:
    return run(HERE, tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if row in HERE else only_x86) for row in ROWS],
    ids=[row.theirs for row in ROWS],
)
def test_a_row(row: Row, came: Mapping[Row, Came]) -> None:
    assert row.pattern.search(came[row].output), came[row]
    assert came[row].status == 0
    assert came[row].errors == ""
    if row.work:
        first, *_, ending = came[row].output.rstrip(b"\n").split(b"\n")
        assert first.startswith(b"Tracing kprobe ")
        assert ending == b"Ending tracing..."
