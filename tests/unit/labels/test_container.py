"""The id of a container as a label: whole or short, empty on the host."""

import pytest

from kprobe_exporter.labels.container import decoder
from kprobe_exporter.model.values import Value

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (f"/docker/{ID}".encode(), ID),
        (f"/kubepods.slice/cri-containerd-{ID}.scope".encode(), ID),
        (b"/system.slice/docker.service", ""),
        (b"/", ""),
        (f"/user.slice/docker-{ID}.scope".encode(), ""),
        (7, None),
        (None, None),
    ],
)
def test_values(value: Value, text: str | None) -> None:
    assert decoder(None)(value) == text
    assert decoder("short")(value) == (text and text[:12])


@pytest.mark.parametrize("options", ["long", "", 12, True, {}, ["short"]])
def test_options(options: object) -> None:
    with pytest.raises(ValueError, match="takes 'short' or nothing"):
        decoder(options)
