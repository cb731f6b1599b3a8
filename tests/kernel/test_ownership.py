"""Another tool's instance, group and events stay, whatever name `cleanup` and an agent are given."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.definitions import delete_group
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.ownership import MARKER, contents, is_marked, mark
from tests.kernel.conftest import StartAgent
from tests.support.foreign import PROBES
from tests.support.leftovers import definitions, instances

NAME = "foreign"
EXEC = "events/sched/sched_process_exec/enable"


@pytest.fixture
def theirs(tmp_path: Path, files: MountedTracefs) -> Iterator[str]:
    """Another tool's probe; yield its definition."""
    program = tmp_path / "program"
    program.write_bytes(bytes(64))
    line = f"p:{NAME}/theirs {program}:0x0"
    files.write("uprobe_events", line)
    yield line
    files.write("uprobe_events", f"-:{NAME}/theirs")


def cleanup(name: str) -> Result:
    return CliRunner().invoke(main, ["cleanup", "--instance", name])


def test_cleanup_leaves_another_tools_instance(theirs: str, files: MountedTracefs, tracefs: Path) -> None:
    with ExitStack() as stack:
        files.mkdir(f"instances/{NAME}")
        stack.callback(files.rmdir, f"instances/{NAME}")
        files.write(f"instances/{NAME}/{EXEC}", "1")
        result = cleanup(NAME)
        assert result.exit_code == 1
        assert f"it holds instances/{NAME}, {NAME}/theirs, sched:sched_process_exec enabled" in result.output
        assert theirs in definitions(tracefs)
        assert NAME in instances(tracefs)
        assert files.read(f"instances/{NAME}/{EXEC}") == b"1\n"


def test_cleanup_leaves_the_events_of_the_top_level(files: MountedTracefs) -> None:
    files.write(EXEC, "1")
    try:
        result = cleanup("..")
        assert result.exit_code == 2
        assert "'..' is not a name" in result.output
        assert files.read(EXEC) == b"1\n"
    finally:
        files.write(EXEC, "0")


def test_an_agent_leaves_another_tools_group(start_agent: StartAgent, theirs: str, tracefs: Path) -> None:
    agent = start_agent(f"global: {{tracefs_instance: {NAME}}}\n" + PROBES, serving=False)
    assert agent.wait() == 1
    assert f"is left alone; it holds {NAME}/theirs: use another name" in agent.output()
    assert len(agent.output().splitlines()) == 1
    assert theirs in definitions(tracefs)
    assert NAME not in instances(tracefs)


class WithoutUprobes(MountedTracefs):
    """The kernel, as if it had no uprobes."""

    def exists(self, path: str) -> bool:
        return path != "uprobe_events" and super().exists(path)


@pytest.mark.parametrize("hidden", [False, pytest.param(True, marks=pytest.mark.needs("kprobe_events"))])
def test_the_marker_can_be_enabled_by_another_tool(files: MountedTracefs, hidden: bool) -> None:
    """`echo 1 > events/enable` has no error because of it, and the marker is of no harm then."""
    if hidden and not files.exists("kprobe_events"):
        pytest.skip("needs kprobe_events")
    some = WithoutUprobes(files.root) if hidden else files
    try:
        mark(some, NAME)
        found = contents(files, NAME)
        files.write(f"events/{NAME}/{MARKER}/enable", "1")
        assert files.read(f"events/{NAME}/{MARKER}/enable") == b"1\n"
        assert is_marked(files, NAME)
        assert found == [f"{NAME}/{MARKER}"]
    finally:
        files.write(f"events/{NAME}/{MARKER}/enable", "0")
        assert delete_group(files, NAME) == (1, [])


def test_a_marker_that_is_defined_twice_goes_as_one(files: MountedTracefs) -> None:
    mark(files, NAME)
    mark(files, NAME)
    Instance.acquire(files, NAME).close()
    assert contents(files, NAME) == []
