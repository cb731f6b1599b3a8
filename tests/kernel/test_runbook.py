"""Each trace command of docs/runbook.md, README.md and docs/command-line.md works and leaves nothing."""

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.support.patience import eventually
from tests.support.runbook import FOUND
from tests.support.system_calls import only_x86
from tests.support.trace_process import TraceProcess

pytestmark = pytest.mark.needs("kprobe_events")

COMMANDS = sorted(command for command in FOUND if "--emit-config" not in command)
EMITTING = sorted(FOUND - set(COMMANDS))

ENDED = (
    r"(make: .*\n)?kprobe-exporter: note: make -j2: (not started|ended by SIGTERM|ended with status 2)\.\n"
)
"""The end of a command that is traced, here without a makefile: it depends on the moment."""


def test_it_has_some() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", EMITTING)
def test_a_command_writes_a_configuration(command: str, tmp_path: Path, tracefs: object) -> None:
    process = TraceProcess(tmp_path, shlex.split(command))
    try:
        assert process.wait() == 0, process.errors
        file = tmp_path / "emitted.yaml"
        file.write_bytes(process.output)
        assert load([file], DECODERS).probes
    finally:
        process.close()


# The commands run one after the other, because concurrent ones would trace each other.
@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=only_x86 if re.search(r"%[a-z]", command) else ()) for command in COMMANDS],
)
def test_a_command_traces(
    command: str, tmp_path: Path, tracefs: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = TraceProcess(tmp_path, shlex.split(command), terminal=True)
    try:
        eventually(lambda: traces(process), 120)
        assert process.end() == 0, process.errors
        if "--flame" in command:
            assert re.fullmatch(
                r"kprobe-exporter: [\d,]+ hits in [\d,]+ stacks, in out.svg\.\n", process.errors
            )
            assert "<svg" in Path("out.svg").read_text()
        elif command.startswith("-c "):
            assert re.fullmatch(ENDED, process.errors)
        else:
            assert process.errors == ""
        assert not process.instance.exists()
    finally:
        process.close()


def traces(process: TraceProcess) -> bool:
    """Return whether the process has an event enabled in its own instance."""
    assert process.poll() is None, (process.output, process.errors)
    with suppress(OSError):
        return (process.instance / "events/enable").read_text().strip() != "0"
    return False
