"""cli.cleanup: takes a name and nothing else, and removes only what is marked as made by us."""

import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kprobe_exporter.cli import cleanup as module
from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.ownership import mark
from tests.support.fake_tracefs import FakeTracefs


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTracefs:
    made = FakeTracefs(tmp_path, {"vfs_read"})
    monkeypatch.setattr(module, "mounted", lambda tracefs: nullcontext(tmp_path))
    monkeypatch.setattr(module, "MountedTracefs", lambda root: made)
    return made


def cleanup(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cleanup", *arguments])


@pytest.mark.parametrize("name", ["..", ".", "", "../..", "a/b", "a b", "1a", "a" * 41, "a\n", "/etc"])
def test_what_is_no_name_is_refused(fake: FakeTracefs, name: str) -> None:
    result = cleanup("--instance", name)
    assert result.exit_code == 2
    assert f"{name!r} is not a name: write up to 40 of A-Z, a-z, 0-9 and _" in result.stderr
    assert fake.writes == []


def test_another_tools_things_stay(fake: FakeTracefs) -> None:
    fake.mkdir("instances/sec_tool_a")
    fake.write("kprobe_events", "p:sec_tool_a/reads vfs_read")
    mark(fake, "kprobe_exporter_trace_1")
    result = cleanup("--instance", "sec_tool_a")
    assert result.exit_code == 1
    assert result.stderr == (
        "kprobe-exporter: 'sec_tool_a' in tracefs is not marked as made by kprobe_exporter, and is left "
        "alone; it holds instances/sec_tool_a, sec_tool_a/reads: use another name "
        "(global.tracefs_instance), or remove these by hand if no program uses them.\n"
    )
    assert result.stdout == "removed 1 definition of the group 'kprobe_exporter_trace_1'\n"
    assert fake.names("instances") == ["sec_tool_a"]
    assert [(event.group, event.name) for event in fake.events] == [("sec_tool_a", "reads")]


def test_what_a_killed_agent_left_goes(fake: FakeTracefs) -> None:
    mark(fake, "my_agent")
    fake.mkdir("instances/my_agent")
    fake.write("kprobe_events", "p:my_agent/reads vfs_read")
    result = cleanup("--instance", "my_agent")
    assert result.exit_code == 0
    assert result.stdout == "removed instances/my_agent and 2 definitions of the group 'my_agent'\n"
    assert (fake.instances, fake.events) == ({}, [])


def test_a_cleanup_that_is_interrupted(fake: FakeTracefs, monkeypatch: pytest.MonkeyPatch) -> None:
    """One signal ends it, one sentence says so, and the next one removes the rest."""
    mark(fake, "my_agent")
    fake.mkdir("instances/my_agent")
    events = [f"reads{number}" for number in range(5)]
    for event in events:
        fake.write("kprobe_events", f"p:my_agent/{event} vfs_read")
        fake.write(f"instances/my_agent/events/my_agent/{event}/enable", "1")
    write = FakeTracefs.write

    def interrupted(self: FakeTracefs, path: str, text: str) -> None:
        write(self, path, text)
        if path.endswith("/reads1/enable"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(FakeTracefs, "write", interrupted)
    result = cleanup("--instance", "my_agent")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "kprobe-exporter: the removal was stopped while switching events off, after 2 of 5: "
        "'kprobe-exporter cleanup' or the next start removes the rest.\n"
    )
    assert [event.name for event in fake.events if event.enabled] == events[2:]
    monkeypatch.undo()
    monkeypatch.setattr(module, "mounted", lambda tracefs: nullcontext(fake.root))
    monkeypatch.setattr(module, "MountedTracefs", lambda root: fake)
    result = cleanup("--instance", "my_agent")
    assert result.stdout == "removed instances/my_agent and 6 definitions of the group 'my_agent'\n"
    assert (fake.instances, fake.events) == ({}, [])
