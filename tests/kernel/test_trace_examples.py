"""Every example and option of perf-tools' `kprobe` works, with real events; the table of the documents."""

from pathlib import Path

import pytest

from tests.perf_tools import ROWS, Row, run

pytestmark = pytest.mark.needs("kprobe_events")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.theirs)
def test_a_row(row: Row, tmp_path: Path) -> None:
    with run(row, tmp_path) as trace:
        assert trace.poll() == 0
        assert row.pattern.search(trace.output)
        assert trace.errors == ""
        if row.ours[0] not in ("-v", "-h"):
            first, *_, ending = trace.output.rstrip(b"\n").split(b"\n")
            assert first.startswith(b"Tracing kprobe ")
            assert ending == b"Ending tracing..."
