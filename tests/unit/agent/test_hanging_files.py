"""A probed file whose file system does not answer holds up its own probes alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.compiling import compiled
from tests.support.fake_tracefs import code_at
from tests.support.hanging_directory import hanging_directory
from tests.support.machine import OPEN, Watched, watched
from tests.support.patience import within
from tests.support.programs import file_offset

PROGRAM = "int twice(int n) { return 2 * n; }\nint main(int count, char **words) { return count; }\n"
TOO_LATE_S = 5


@pytest.fixture
def program(tmp_path: Path) -> Path:
    directory = tmp_path / "mount"
    directory.mkdir()
    return compiled(directory / "program", PROGRAM)


@pytest.fixture
def machine(tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """An agent that has started while the program hung, which still does."""
    code = code_at(program, file_offset(str(program), "twice"))
    probe = f"{{name: dead, attach: 'uprobe:{program}:twice'}}"
    with (
        hanging_directory(program.parent, monkeypatch) as hanging,
        within(TOO_LATE_S),
        watched(tmp_path, monkeypatch, OPEN, probe) as made,
    ):
        yield made
        made.look()
        made.shows((1, "kprobe_exporter_fault", "file_hangs"))
        assert hanging.threads == 1
        hanging.end()
        made.look()
        made.fire(code, 2)
        made.shows((2, "kprobe_hits_total", "dead"), (0, "kprobe_exporter_fault", "file_hangs"))


def test_start(machine: Watched) -> None:
    machine.fire("do_open", 3)
    machine.shows((3, "kprobe_hits_total", "open"), (1, "kprobe_up", "open"), (0, "kprobe_up", "dead"))
    [dead] = [probe for probe in machine.agent.snapshot().probes if probe.name == "dead"]
    assert dead.reason.endswith("program cannot be read: its file system does not answer")
