"""The commands of docs/runbook.md that trace do so on this kernel, and leave nothing behind."""

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agent_process import eventually
from tests.trace_process import TraceProcess

pytestmark = pytest.mark.needs("kprobe_events")

RUNBOOK = (Path(__file__).parents[2] / "docs/runbook.md").read_text()
COMMANDS = sorted(set(re.findall(r"^kprobe-exporter trace ([^#\n]*?)\s*(?:#.*)?$", RUNBOOK, re.MULTILINE)))


def test_it_has_some() -> None:
    assert len(COMMANDS) >= 8


# One after the other: at once they would trace each other.
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_traces(command: str, tmp_path: Path, tracefs: object) -> None:
    process = TraceProcess(tmp_path, shlex.split(command), terminal=True)
    try:
        eventually(lambda: traces(process), 120)
        assert process.end() == 0, process.errors
        assert process.errors == ""
        assert not process.instance.exists()
    finally:
        process.close()


def traces(process: TraceProcess) -> bool:
    """Whether it has an event enabled, in its own instance."""
    assert process.poll() is None, (process.output, process.errors)
    with suppress(OSError):
        return (process.instance / "events/enable").read_text().strip() != "0"
    return False
