"""examples/: every one is right by itself, and all of them together."""

from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_it_loads_without_a_warning(file: Path) -> None:
    found = load([file], DECODERS)
    assert found.probes
    assert found.warnings == ()
    assert all(probe.help and probe.name for probe in found.probes)


def test_they_go_together() -> None:
    assert len(load(EXAMPLES, DECODERS).probes) == sum(len(load([one], DECODERS).probes) for one in EXAMPLES)
