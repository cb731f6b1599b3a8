"""Pods by the names of their logs: found when they appear, kept for a while afterwards, never mixed up."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.identity import pods
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.pods import KEEP, LONGEST_PAUSE, SCAN_PAUSE, Pod, Pods, Whereabouts
from kprobe_exporter.model.records import Record
from tests.support.container_paths import UID, A, B

C = "a1" * 31 + "a2"
NEXT = "0f6dd4bd-9a2c-4a4b-8b5e-3e1f0a9d7c12"
HASH = "6a0b8c5ddf6d9a0cbd8ef4d9d0b3a1c2"


class Node:
    """kubelet's two directories and a clock."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.now = 100.0
        for name in ("pods", "containers"):
            (logs / name).mkdir()
        self.pods = Pods(logs, lambda: self.now)

    def pod(self, namespace: str, name: str, uid: str) -> Path:
        path = self.logs / "pods" / f"{namespace}_{name}_{uid}"
        path.mkdir()
        return path

    def link(self, pod: str, namespace: str, container: str, number: str) -> Path:
        path = self.logs / "containers" / f"{pod}_{namespace}_{container}-{number}.log"
        path.symlink_to("/nowhere/0.log")
        return path


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_pod_and_its_container(node: Node) -> None:
    node.pod("default", "web-0", UID)
    node.link("web-0", "default", "nginx-proxy", A)
    assert node.pods.find(A, UID) == Pod("default", "web-0", "nginx-proxy", UID)
    assert node.pods.find(A, None) == Pod("default", "web-0", "nginx-proxy", None)


def test_a_static_pod_is_called_after_its_manifests_hash(node: Node) -> None:
    node.pod("kube-system", "etcd-ip-10-0-0-1.ec2.internal", HASH)
    node.link("etcd-ip-10-0-0-1.ec2.internal", "kube-system", "etcd", A)
    assert node.pods.find(A, HASH) == Pod("kube-system", "etcd-ip-10-0-0-1.ec2.internal", "etcd", HASH)


def test_a_container_without_a_link_is_of_its_pod(node: Node) -> None:
    node.pod("default", "web-0", UID)
    assert node.pods.find(A, UID) == Pod("default", "web-0", None, UID)
    node.link("web-0", "default", "nginx", A)
    node.now += SCAN_PAUSE
    assert node.pods.find(A, UID) == Pod("default", "web-0", "nginx", UID)


def test_a_link_without_a_directory(node: Node) -> None:
    node.link("web-0", "default", "nginx", A)
    assert node.pods.find(A, UID) == Pod("default", "web-0", "nginx", UID)


def test_a_link_that_names_another_pod_names_no_container(node: Node) -> None:
    node.pod("default", "web-0", UID)
    node.link("web-1", "default", "nginx", A)
    assert node.pods.find(A, UID) == Pod("default", "web-0", None, UID)


def test_ids_are_compared_as_a_whole(node: Node) -> None:
    node.pod("default", "web-0", UID)
    node.link("web-0", "default", "nginx", A)
    assert node.pods.find(C, NEXT) is None
    assert node.pods.find(C, None) is None
    assert node.pods.find(A[:12], None) is None


def test_the_next_pod_of_the_same_name(node: Node) -> None:
    node.pod("default", "web-0", UID).rmdir()
    node.pod("default", "web-0", NEXT)
    node.link("web-0", "default", "nginx", B)
    assert node.pods.find(B, NEXT) == Pod("default", "web-0", "nginx", NEXT)
    assert node.pods.find(A, UID) is None


@pytest.fixture
def looks(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of times at which the directories are read."""
    times: list[float] = []
    look = Pods._look

    def watched(self: Pods) -> None:
        times.append(node.now)
        look(self)

    monkeypatch.setattr(Pods, "_look", watched)
    return times


def test_an_unknown_pod_is_looked_for_with_growing_pauses(node: Node, looks: list[float]) -> None:
    step = SCAN_PAUSE / 2
    for _ in range(8000):
        assert node.pods.find(A, UID) is None
        node.now += step
    pauses = [after - before for before, after in pairwise(looks)]
    growing = [min(SCAN_PAUSE * 2**times, LONGEST_PAUSE) for times in range(len(pauses))]
    assert pauses == pytest.approx(growing, abs=step)
    assert pauses[-1] >= LONGEST_PAUSE
    node.pod("default", "late", UID)
    node.now += LONGEST_PAUSE
    assert node.pods.find(A, UID) == Pod("default", "late", None, UID)


def test_many_unknown_pods_share_the_looks(
    node: Node, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "MOST_UNKNOWN", 50)
    for number in range(1000):
        assert node.pods.find(f"{number:064x}", None) is None
        node.now += 0.01
    assert len(looks) <= 10 / SCAN_PAUSE + 1
    assert len(node.pods._pauses) <= 50


def test_what_is_known_costs_no_look(node: Node, looks: list[float]) -> None:
    node.pod("default", "web-0", UID)
    node.link("web-0", "default", "nginx", A)
    for _ in range(100):
        assert node.pods.find(A, UID) is not None
        node.now += LONGEST_PAUSE
    assert len(looks) == 1


def test_a_pod_that_went_keeps_its_name_for_a_while(node: Node) -> None:
    directory = node.pod("default", "web-0", UID)
    link = node.link("web-0", "default", "nginx", A)
    whole = Pod("default", "web-0", "nginx", UID)
    assert node.pods.find(A, UID) == whole
    directory.rmdir()
    link.unlink()
    node.now += 10 * KEEP  # the directories were not read, so it was not missed
    assert node.pods.find(B, NEXT) is None
    node.now += KEEP - 1
    assert node.pods.find(B, NEXT) is None
    assert node.pods.find(A, UID) == whole
    node.now += LONGEST_PAUSE
    assert node.pods.find(B, NEXT) is None
    assert node.pods.find(A, UID) is None


def test_a_directory_that_comes_back_was_never_gone(node: Node) -> None:
    directory = node.pod("default", "web-0", UID)
    for there in (True, False, True, True):
        directory.rmdir()
        if there:
            directory.mkdir()
        node.pods.find(B, NEXT)
        directory.mkdir(exist_ok=True)
        node.now += KEEP
    assert node.pods.find(A, UID) == Pod("default", "web-0", None, UID)


def test_a_machine_without_kubernetes(tmp_path: Path) -> None:
    assert Pods(tmp_path / "none").find(A, UID) is None


def test_what_is_remembered_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "MOST_NAMES", 5)
    for number in range(60):
        directory = node.pod("default", f"web-{number}", f"{number:032x}")
        found = node.pods.find(A, f"{number:032x}")
        assert found == Pod("default", f"web-{number}", None, f"{number:032x}")
        directory.rmdir()
        node.now += SCAN_PAUSE
    assert len(node.pods._pods.entries) <= 10


def test_no_more_names_are_read_than_there_may_be(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "MOST_NAMES", 5)
    for number in range(20):
        node.pod("default", f"web-{number}", f"{number:032x}")
    node.pods.find(A, UID)
    assert len(node.pods._pods.entries) == 5


@pytest.mark.parametrize(
    "name",
    [
        *(f"default_web_0_{UID}", f"Default_web_{UID}", f"-default_web_{UID}", f"default_web-_{UID}"),
        *(f"default_web..x_{UID}", f"default__{UID}", f"_web_{UID}", f"{'n' * 64}_web_{UID}"),
        *(f"default_web_{UID.upper()}", f"default_web_{UID}x", f"default_wéb_{UID}"),
        *(f"default_web_{UID}\n", f"default_web\n_{UID}"),
    ],
)
def test_directories_that_kubelet_did_not_make(node: Node, name: str) -> None:
    (node.logs / "pods" / name).mkdir()
    assert node.pods.find(A, UID) is None


@pytest.mark.parametrize(
    "name",
    [
        *(f"web_default_nginx-{A}", f"web_default_nginx-{A}.log.1", f"web_default_nginx-{A[1:]}.log"),
        *(f"web_default_-{A}.log", f"web_default_Nginx-{A}.log", f"web_de.fault_nginx-{A}.log"),
        *(f"web_x_default_nginx-{A}.log", f"web_default_nginx-{A}.log\n"),
    ],
)
def test_links_that_kubelet_did_not_make(node: Node, name: str) -> None:
    (node.logs / "containers" / name).symlink_to("/nowhere")
    assert node.pods.find(A, None) is None


labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


@given(labels, st.lists(labels, min_size=1, max_size=3).map(".".join), labels, st.text(max_size=40))
def test_names_are_taken_apart_where_they_were_put_together(
    namespace: str, pod: str, container: str, other: str
) -> None:
    found = pods._LINK.fullmatch(f"{pod}_{namespace}_{container}-{A}.log")
    assert found
    assert found.groups() == (pod, namespace, container, A)
    found = pods._DIRECTORY.fullmatch(f"{namespace}_{pod}_{UID}")
    assert found
    assert found.groups() == (namespace, pod, UID)
    assert pods._DIRECTORY.fullmatch(f"{other}_{UID}") is None or other.count("_") == 1


IN_POD = f"/kubepods/burstable/pod{UID}/{A}".encode()


def record(tid: int, time: int) -> Record:
    return (0, time, 0, tid, None, None)


def whereabouts(node: Node) -> tuple[Whereabouts, Cgroups]:
    node.pod("shop", "web-1", UID)
    node.link("web-1", "shop", "app", A)
    cgroups = Cgroups(node.logs / "proc")
    return Whereabouts(cgroups, node.pods), cgroups


def test_what_is_told_is_where_it_was(node: Node) -> None:
    """An event keeps its thread's container when the cgroup of that id changes in the same batch."""
    found, cgroups = whereabouts(node)
    cgroups.attached(7, 0, IN_POD, 1)
    found.note(record(7, 2))
    cgroups.attached(7, 0, f"/docker/{B}".encode(), 3)
    found.note(record(7, 4))
    assert found.take(7, 2) == {
        "container.id": A,
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-1",
        "k8s.pod.uid": UID,
        "k8s.container.name": "app",
    }
    assert found.take(7, 4) == {"container.id": B}


def test_on_the_host_there_is_nothing_to_tell(node: Node) -> None:
    found, cgroups = whereabouts(node)
    cgroups.attached(7, 0, b"/system.slice/ssh.service", 1)
    found.note(record(7, 2))
    found.note(record(8, 2))
    assert (found.take(7, 2), found.take(8, 2)) == (None, None)


def test_it_is_forgotten_with_its_batch(node: Node) -> None:
    found, cgroups = whereabouts(node)
    cgroups.attached(7, 0, IN_POD, 1)
    found.note(record(7, 2))
    found.forget()
    assert found.take(7, 2) is None
