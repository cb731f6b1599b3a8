"""The name of a pod as a label: empty outside of pods, and ``None`` for an unknown pod."""

from pathlib import Path

import pytest

from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.labels.pod import decoder, decoder_with
from kprobe_exporter.model.values import Value

ID = "0123456789abcdef" * 4
UID = "0f6dd4bd-9a2c-4a4b-8b5e-3e1f0a9d7c11"


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    (tmp_path / f"pods/default_web-0_{UID}").mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    (tmp_path / f"containers/db-0_data_postgres-{ID}.log").symlink_to("/nowhere")
    return Pods(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (f"/kubepods/burstable/pod{UID}/{'ab' * 32}".encode(), "web-0"),
        (f"/kubepods/burstable/pod{UID[:-1]}2/{'ab' * 32}".encode(), None),
        (f"/../cri-containerd-{ID}.scope".encode(), "db-0"),
        (f"/../cri-containerd-{'ab' * 32}.scope".encode(), None),
        (f"/docker/{ID}".encode(), "db-0"),
        (f"/docker/{'ab' * 32}".encode(), ""),
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
    path = f"/kubepods/pod{UID}/{ID}".encode()
    assert decode(path) is None
    (tmp_path / f"pods/default_web-0_{UID}").mkdir(parents=True)
    assert decode(path) is None
    now = 1.0
    assert decode(path) == "web-0"


def test_it_takes_no_options() -> None:
    assert decoder(None)(b"/") == ""
    with pytest.raises(ValueError, match="the decoder pod takes no options"):
        decoder({})
