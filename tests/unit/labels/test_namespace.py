"""The namespace of a pod as a label, looked up in the same ``Pods`` as the pod's name."""

from pathlib import Path

import pytest

from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.labels import namespace, pod
from tests.support.container_paths import UID, A


def test_both_look_in_the_same_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"pods/kube-system_etcd-node_{UID}").mkdir(parents=True)
    looks: list[Pods] = []
    look = Pods._look

    def watched(self: Pods) -> None:
        looks.append(self)
        look(self)

    monkeypatch.setattr(Pods, "_look", watched)
    pods = Pods(tmp_path)
    path = f"/kubepods/pod{UID}/{A}".encode()
    assert namespace.decoder_with(pods)(None)(path) == "kube-system"
    assert pod.decoder_with(pods)(None)(path) == "etcd-node"
    assert looks == [pods]


@pytest.mark.parametrize(
    ("value", "text"), [(b"/", ""), (f"/kubepods/pod{UID}/{A}".encode(), None), (None, None), (3, None)]
)
def test_no_pod_and_an_unknown_one(tmp_path: Path, value: bytes | int | None, text: str | None) -> None:
    assert namespace.decoder_with(Pods(tmp_path))(None)(value) == text
