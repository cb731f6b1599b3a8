"""docs/kinds.md has every kind and every decoder, and each of its examples is a valid configuration."""

import re
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Probe
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import UNBOUNDED
from tests.support.kinds_document import DOCUMENT, Row, decoders, kinds, probe_of_decoder, probe_of_kind

README = (DOCUMENT.parents[1] / "README.md").read_text()


def test_every_kind_has_a_row() -> None:
    documented = {row.codes("kind")[0] for row in kinds()}
    assert documented == {str(kind) for kind in Kind}


def test_every_decoder_has_a_row() -> None:
    documented = {row.codes("decoder")[0] for row in decoders()}
    assert documented == DECODERS.keys() - UNBOUNDED  # which are no labels of metrics


@pytest.mark.parametrize("table", [kinds(), decoders()], ids=["kinds", "decoders"])
def test_no_row_is_there_twice(table: list[Row]) -> None:
    names = [row.name for row in table]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("row", kinds(), ids=lambda row: row.name)
def test_a_kinds_example_is_one_of_it(tmp_path: Path, row: Row) -> None:
    (probe,) = loaded(tmp_path, probe_of_kind(row))
    kind = Kind(row.codes("kind")[0])
    assert {way.target.kind for way in probe.attach} == {kind}
    assert any(way.target.is_pattern for way in probe.attach) == ("by a pattern" in row.name)
    assert Target(kind).is_joined == ("duration" in row.codes("more fields"))


@pytest.mark.parametrize("row", decoders(), ids=lambda row: row.name)
def test_a_decoders_example_decodes(tmp_path: Path, row: Row) -> None:
    (probe,) = loaded(tmp_path, probe_of_decoder(row))
    (label,) = probe.metrics[0].labels
    assert row.codes("decoder")[0] in [step.name for step in label.decode]


def loaded(directory: Path, probe: str) -> tuple[Probe, ...]:
    file = directory / "documented.yaml"
    file.write_text(f"probes:\n{probe}")
    file.chmod(0o600)
    found = load([file], DECODERS)
    assert found.warnings == ()
    return found.probes


def test_the_readme_names_every_kind_and_every_decoder() -> None:
    (kinds_named,) = re.findall(r"^The kinds of probes are ([^.]+)\.", README, re.MULTILINE)
    (decoders_named,) = re.findall(r"These decoders make labels of (.+?)\n\n", README, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", kinds_named)) == {str(kind) for kind in Kind}
    assert set(re.findall(r"`(\w+)`", decoders_named)) == DECODERS.keys()
