"""tracefs.leftovers: what killed traces left is removed; the instances of live and new traces stay."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.errors import TracefsError
from kprobe_exporter.tracefs import ownership
from kprobe_exporter.tracefs.leftovers import PREFIX, acquire_for_trace, remove_dead_traces, traces
from kprobe_exporter.tracefs.ownership import mark
from tests.support.fake_tracefs import FakeTracefs

OWN = f"{PREFIX}{os.getpid()}"


@pytest.fixture
def fake(tmp_path: Path) -> FakeTracefs:
    return FakeTracefs(tmp_path, {"vfs_read"})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "ATTEMPTS", 2)
    monkeypatch.setattr(ownership, "PAUSE", 0)


def die(fake: FakeTracefs, name: str) -> None:
    """Leave what a killed trace leaves: an instance that no process has locked, and an event."""
    mark(fake, name)
    fake.mkdir(f"instances/{name}")
    fake.write("kprobe_events", f"p:{name}/mine vfs_read")


def test_a_dead_one_goes_and_a_live_one_stays(fake: FakeTracefs) -> None:
    die(fake, f"{PREFIX}1")
    mark(fake, f"{PREFIX}2")
    fake.write("kprobe_events", f"p:{PREFIX}2/mine vfs_read")  # killed after its instance was removed
    fake.write("kprobe_events", "p:other/mine vfs_read")
    fake.mkdir("instances/other")
    with acquire_for_trace(fake):
        fake.write("kprobe_events", f"p:{OWN}/mine vfs_read")
        assert traces(fake) == sorted([f"{PREFIX}1", f"{PREFIX}2", OWN])
        remove_dead_traces(fake)
        assert traces(fake) == [OWN]
    assert traces(fake) == []
    assert fake.names("instances") == ["other"]
    assert fake.read("kprobe_events") == b"p:other/mine vfs_read\n"


def test_another_process_of_the_same_number(fake: FakeTracefs) -> None:
    with acquire_for_trace(fake) as theirs, acquire_for_trace(fake) as ours:
        assert (theirs.name, ours.name) == (OWN, f"{OWN}_2")


@pytest.mark.parametrize("start", [acquire_for_trace, remove_dead_traces])
def test_one_after_the_other(fake: FakeTracefs, monkeypatch: pytest.MonkeyPatch, start: object) -> None:
    """``instances`` is locked meanwhile: an instance that is made but not locked yet looks dead."""
    held = []
    make = fake.mkdir

    def watched(path: str) -> None:
        held.append(fake.lock("instances") is None)
        make(path)

    die(fake, f"{PREFIX}1")
    monkeypatch.setattr(fake, "mkdir", watched)
    assert callable(start)
    start(fake)
    assert held
    assert all(held)
    lock = fake.lock("instances")
    assert lock is not None
    os.close(lock)


def test_a_stopped_process_delays_no_other(fake: FakeTracefs) -> None:
    lock = fake.lock("instances")
    assert lock is not None
    die(fake, f"{PREFIX}1")
    remove_dead_traces(fake)
    assert traces(fake) == []
    os.close(lock)


class Forbidden(FakeTracefs):
    """A tracefs in which nothing may be listed, locked or created."""

    def forbidden(self, path: str) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    names = lock = mkdir = forbidden


def test_without_permission(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Removing leftovers only logs a warning; starting a trace raises an error that names the remedy."""
    fake = Forbidden(tmp_path, {"vfs_read"})
    remove_dead_traces(fake)
    (message,) = caplog.messages
    assert message.startswith("what killed traces left cannot be looked for: ")
    with pytest.raises(TracefsError, match="run as root"):
        acquire_for_trace(fake)


def test_further_instance_belongs_to_its_trace(fake: FakeTracefs, caplog: pytest.LogCaptureFixture) -> None:
    with acquire_for_trace(fake) as trace:
        further = f"{trace.name}.threads"
        fake.mkdir(f"instances/{further}")
        assert traces(fake) == [trace.name]
        remove_dead_traces(fake)
        assert caplog.text == ""
        assert fake.exists(f"instances/{further}")
    assert traces(fake) == []
