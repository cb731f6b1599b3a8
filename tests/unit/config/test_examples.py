"""examples/: each file loads alone and with the others of its directory; the default matches the packs."""

import re
from pathlib import Path

import pytest

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS

DIRECTORY = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(DIRECTORY.rglob("*.yaml"))
PACKS = DIRECTORY / "packs"
DOCUMENT = DIRECTORY.parent / "docs/examples.md"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_it_loads_without_a_warning(file: Path) -> None:
    found = load([file], DECODERS)
    assert found.probes
    assert found.warnings == ()
    assert all(probe.help and probe.name for probe in found.probes)
    assert all(metric.help.endswith(".") for probe in found.probes for metric in probe.metrics)


@pytest.mark.parametrize(
    "where",
    [[PACKS], [DIRECTORY / "ebpf_exporter"], [DIRECTORY, DIRECTORY / "otlp"]],
    ids=["packs", "ebpf_exporter", "the others"],
)
def test_they_go_together(where: list[Path]) -> None:
    files = [file for directory in where for file in directory.glob("*.yaml")]
    assert len(load(where, DECODERS).probes) == sum(len(load([one], DECODERS).probes) for one in files)


def test_the_packaged_configuration_is_of_the_packs() -> None:
    """Each default probe equals that of the packs, so a dashboard or an alert for one fits the other."""
    packs = {probe.name: probe for probe in load([PACKS], DECODERS).probes}
    for probe in load([DEFAULT], DECODERS).probes:
        assert probe == packs[probe.name]


@pytest.mark.parametrize("file", sorted(PACKS.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_document_has_the_packs_probes(file: Path) -> None:
    (row,) = [
        line
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith(f"| `examples/packs/{file.name}`")
    ]
    on, _, off = row.split(" | ")[2].partition("off:")
    probes = load([file], DECODERS).probes
    assert re.findall(r"`(\w+)`", on) == [probe.name for probe in probes if probe.enabled]
    assert re.findall(r"`(\w+)`", off) == [probe.name for probe in probes if not probe.enabled]


def test_the_document_has_the_other_files() -> None:
    named = re.findall(r"`(examples/\w+\.yaml)`", DOCUMENT.read_text().partition("## The other examples")[2])
    assert sorted(named) == [f"examples/{file.name}" for file in sorted(DIRECTORY.glob("*.yaml"))]
