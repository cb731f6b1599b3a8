"""identity.attributes: a thread's container is noted in stream order and read when its event is exported."""

from pathlib import Path

from kprobe_exporter.identity.attributes import Whereabouts
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.model.values import Record

ID, OTHER = "ab" * 32, "cd" * 32
UID = "0b5ba9f2-3f36-4c3c-9a3c-5d9a6a0b0001"
POD = f"/kubepods/burstable/pod{UID}/{ID}".encode()


def record(tid: int, time: int) -> Record:
    return (0, time, 0, tid, None, None)


def whereabouts(tmp_path: Path) -> tuple[Whereabouts, Cgroups]:
    (tmp_path / "log/pods" / f"shop_web-1_{UID}").mkdir(parents=True)
    (tmp_path / "log/containers").mkdir()
    (tmp_path / "log/containers" / f"web-1_shop_app-{ID}.log").symlink_to("x")
    cgroups = Cgroups(tmp_path / "proc")
    return Whereabouts(cgroups, Pods(tmp_path / "log")), cgroups


def test_what_is_told_is_where_it_was(tmp_path: Path) -> None:
    """An event keeps its thread's container when the cgroup of that id changes in the same batch."""
    found, cgroups = whereabouts(tmp_path)
    cgroups.attached(7, 0, POD, 1)
    found.note(record(7, 2))
    cgroups.attached(7, 0, f"/docker/{OTHER}".encode(), 3)
    found.note(record(7, 4))
    assert found.take(7, 2) == {
        "container.id": ID,
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-1",
        "k8s.pod.uid": UID,
        "k8s.container.name": "app",
    }
    assert found.take(7, 4) == {"container.id": OTHER}


def test_on_the_host_there_is_nothing_to_tell(tmp_path: Path) -> None:
    found, cgroups = whereabouts(tmp_path)
    cgroups.attached(7, 0, b"/system.slice/ssh.service", 1)
    found.note(record(7, 2))
    found.note(record(8, 2))
    assert (found.take(7, 2), found.take(8, 2)) == (None, None)


def test_it_is_forgotten_with_its_batch(tmp_path: Path) -> None:
    found, cgroups = whereabouts(tmp_path)
    cgroups.attached(7, 0, POD, 1)
    found.note(record(7, 2))
    found.forget()
    assert found.take(7, 2) is None
