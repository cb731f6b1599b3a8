"""tracefs.ownership: what is not marked as ours is refused, whatever its name, and stays as it was."""

import errno
import os
from pathlib import Path

import pytest

from kprobe_exporter.errors import InstanceBusy, NotMounted, TracefsError
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.ownership import MARKER, contents, is_marked, mark
from tests.support.fake_tracefs import FakeTracefs

NAME = "sec_tool"


@pytest.fixture
def fake(tmp_path: Path) -> FakeTracefs:
    return FakeTracefs(tmp_path, {"vfs_read", "kernel_halt"})


def lines(fake: FakeTracefs) -> list[str]:
    return [defined.line for defined in list_definitions(fake)]


def test_another_tools_instance_and_its_enabled_probe_stay(fake: FakeTracefs) -> None:
    fake.mkdir(f"instances/{NAME}")
    fake.write("kprobe_events", f"p:{NAME}/reads vfs_read")
    fake.write(f"instances/{NAME}/events/{NAME}/reads/enable", "1")
    fake.write(f"instances/{NAME}/events/sched/sched_process_exec/enable", "1")
    before = lines(fake)
    held = (
        f"instances/{NAME}, {NAME}/reads, {NAME}:reads enabled, sched:sched_process_exec enabled: use another"
    )
    with pytest.raises(TracefsError, match=f"not marked as made by kprobe_exporter.* it holds {held}"):
        Instance.acquire(fake, NAME)
    assert fake.names("instances") == [NAME]
    assert lines(fake) == before
    assert fake.events[0].enabled == {NAME}


def test_another_tools_group_without_an_instance_stays(fake: FakeTracefs) -> None:
    fake.write("kprobe_events", f"p:{NAME}/reads vfs_read")
    with pytest.raises(TracefsError, match=f"it holds {NAME}/reads: use another name"):
        Instance.acquire(fake, NAME)
    assert lines(fake) == [f"p:{NAME}/reads vfs_read"]
    assert fake.names("instances") == []


def test_further_instances_go_with_their_agents_and_similar_names_stay(fake: FakeTracefs) -> None:
    others = ["other.slow.a", f"{NAME}.mine", f"{NAME}.slow.c", f"{NAME}2", f"{NAME}2.slow.a"]
    killed = Instance.acquire(fake, NAME)._lock
    assert killed is not None
    os.close(killed)
    for name in (f"{NAME}.threads", f"{NAME}.slow.a", f"{NAME}.slow.b", *others):
        fake.mkdir(f"instances/{name}")
    Instance.acquire(fake, NAME).close()
    assert fake.names("instances") == sorted(others)


def test_a_long_list_is_cut(fake: FakeTracefs) -> None:
    for number in range(30):
        fake.write("kprobe_events", f"p:{NAME}/reads_{number} vfs_read")
    with pytest.raises(TracefsError, match=f"{NAME}/reads_9 and 20 more: use"):
        Instance.acquire(fake, NAME)


def test_a_live_agent_of_an_older_version_is_busy(fake: FakeTracefs) -> None:
    fake.mkdir(f"instances/{NAME}")
    lock = fake.lock(f"instances/{NAME}")
    assert lock is not None
    with pytest.raises(InstanceBusy, match="another live agent"):
        Instance.acquire(fake, NAME)
    os.close(lock)


def test_the_marker_goes_last_and_only_if_nothing_remains(fake: FakeTracefs) -> None:
    with Instance.acquire(fake, NAME):
        fake.write("kprobe_events", f"p:{NAME}/reads vfs_read")
        fake.mkdir("instances/another")
        fake.write(f"instances/another/events/{NAME}/reads/enable", "1")
    assert contents(fake, NAME) == [f"{NAME}/{MARKER}", f"{NAME}/reads"]
    fake.write(f"instances/another/events/{NAME}/reads/enable", "0")
    fake.writes.clear()
    Instance.acquire(fake, NAME).close()
    assert contents(fake, NAME) == []
    assert [text for _, text in fake.writes] == [f"-:{NAME}/reads\n", f"-:{NAME}/{MARKER}\n"]


def test_a_deleted_marker_is_defined_again(fake: FakeTracefs) -> None:
    with Instance.acquire(fake, NAME) as instance:
        fake.write("dynamic_events", f"-:{NAME}/{MARKER}\n")
        instance.keep_marker()
        assert is_marked(fake, NAME)
        instance.keep_marker()
        assert len(lines(fake)) == 1
    assert lines(fake) == []


class WithoutUprobes(FakeTracefs):
    """A kernel that has kprobes and no uprobes, or neither."""

    def exists(self, path: str) -> bool:
        return path != "uprobe_events" and super().exists(path)


def test_a_kernel_without_uprobes_has_a_kprobe_as_the_marker(tmp_path: Path) -> None:
    fake = WithoutUprobes(tmp_path, {"kernel_halt"})
    mark(fake, NAME)
    assert lines(fake) == [f"p:{NAME}/{MARKER} kernel_halt"]
    Instance.acquire(fake, NAME).close()
    assert lines(fake) == []


def test_a_kernel_without_probes_has_no_marker(tmp_path: Path) -> None:
    """It has no groups either; an instance that a killed agent left is refused there."""
    fake = WithoutUprobes(tmp_path, set(), kprobes=False)
    killed = Instance.acquire(fake, NAME)
    assert lines(fake) == []
    assert killed._lock is not None
    os.close(killed._lock)
    with pytest.raises(TracefsError, match="not marked as made by kprobe_exporter"):
        Instance.acquire(fake, NAME)


def test_a_refused_marker_stops_the_start(fake: FakeTracefs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, text: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)

    monkeypatch.setattr(fake, "write", refuse)
    with pytest.raises(
        TracefsError, match=f"the marker {NAME}/{MARKER} cannot be made: the kernel is locked down"
    ):
        Instance.acquire(fake, NAME)
    assert fake.names("instances") == []


def test_an_old_kernel_gets_a_file_without_a_newer_flag(
    fake: FakeTracefs, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = os.memfd_create

    def before_6_3(name: str, flags: int) -> int:
        if flags & 0x8:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return create(name, flags)

    monkeypatch.setattr(os, "memfd_create", before_6_3)
    mark(fake, NAME)
    assert is_marked(fake, NAME)


def test_an_instance_that_cannot_be_made_leaves_no_marker(
    fake: FakeTracefs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)

    monkeypatch.setattr(fake, "mkdir", refuse)
    with pytest.raises(TracefsError, match="no memory for its ring buffer"):
        Instance.acquire(fake, NAME)
    assert lines(fake) == []


def test_without_proc_nothing_can_be_marked(
    fake: FakeTracefs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, text: str) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(fake, "write", refuse)
    monkeypatch.setattr("kprobe_exporter.tracefs.ownership.OWN_FILES", tmp_path / "fd")
    with pytest.raises(NotMounted, match="fd is not there: mount /proc with 'mount -t proc proc /proc'"):
        mark(fake, NAME)
