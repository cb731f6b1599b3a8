"""The name of a pod as a label: empty outside of pods, and ``None`` for an unknown pod."""

from pathlib import Path

import pytest

from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.labels.pod import decoder_with
from kprobe_exporter.model.values import Value
from tests.support.container_paths import UID, A, B


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    (tmp_path / f"pods/default_web-0_{UID}").mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    (tmp_path / f"containers/db-0_data_postgres-{A}.log").symlink_to("/nowhere")
    return Pods(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (f"/kubepods/burstable/pod{UID}/{B}".encode(), "web-0"),
        (f"/kubepods/burstable/pod{UID[:-1]}2/{B}".encode(), None),
        (f"/../cri-containerd-{A}.scope".encode(), "db-0"),
        (f"/../cri-containerd-{B}.scope".encode(), None),
        (f"/docker/{A}".encode(), "db-0"),
        (f"/docker/{B}".encode(), ""),
        (b"/system.slice/kubelet.service", ""),
        (b"/", ""),
        (7, None),
        (None, None),
    ],
)
def test_values(pods: Pods, value: Value, text: str | None) -> None:
    assert decoder_with(pods)(None)(value) == text


def test_a_pod_that_comes_later(tmp_path: Path) -> None:
    now = 0.0
    decode = decoder_with(Pods(tmp_path, lambda: now))(None)
    path = f"/kubepods/pod{UID}/{A}".encode()
    assert decode(path) is None
    (tmp_path / f"pods/default_web-0_{UID}").mkdir(parents=True)
    assert decode(path) is None
    now = 1.0
    assert decode(path) == "web-0"
