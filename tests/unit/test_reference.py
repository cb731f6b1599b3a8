"""The generated documents, manual page and completions are what the code makes, nothing missing or added."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kprobe_exporter.aggregate.self_metrics import LOSSES, PREFIX
from kprobe_exporter.config.load import load
from kprobe_exporter.config.schema import json_schema
from kprobe_exporter.labels import DECODERS
from tests.reference import DOCS, DOCUMENTS, FILES, ROOT
from tests.reference.configuration import FILE, FIRING
from tests.reference.exposition import CLIENT, agent, exposed
from tests.reference.markdown import Template, anchor, table
from tests.reference.metrics import NOTES

ROW = re.compile(r"^\| `([^`]+)` \|(.*)\|$", re.MULTILINE)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
LINK = re.compile(r"\]\(([\w.-]+\.md)?#([^)]+)\)")


def text(name: str) -> str:
    return (DOCS / name).read_text()


@pytest.mark.parametrize("name", FILES)
def test_it_is_what_the_code_makes_of_it(name: str) -> None:
    assert (ROOT / name).read_text() == FILES[name](), "run: make reference"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_row_says_something(name: str) -> None:
    for key, cells in ROW.findall(text(name)):
        assert cells.rpartition("|")[2].strip(), key


class TestConfiguration:
    def test_every_key_of_the_schema_has_a_row(self) -> None:
        """The tables of the document, in order, have the keys of the schema's mappings."""
        schema = json_schema()
        wanted = {FILE: schema, **schema["$defs"]}
        tables = re.findall(r"(?:^\|.*\n)+", text("configuration.md"), re.MULTILINE)
        order = Template("configuration.md").headings()
        assert order.keys() == wanted.keys() | {FIRING}
        for name, lines in zip(order, tables, strict=True):
            if name == FIRING:
                continue
            assert [key for key, _ in ROW.findall(lines)] == [*wanted[name]["properties"]], name

    @pytest.mark.parametrize("example", YAML.findall(text("configuration.md")))
    def test_its_examples_are_configurations(self, tmp_path: Path, example: str) -> None:
        file = tmp_path / "example.yaml"
        file.write_text(example)
        file.chmod(0o600)
        assert load([file], DECODERS).warnings == ()


class TestMetrics:
    def test_every_family_has_a_row_and_every_row_a_family(self) -> None:
        with agent() as running:
            scraped = exposed(running)
        shown, labels = {}, {}
        for family in text_string_to_metric_families(scraped):
            if not family.name.startswith(CLIENT):
                name = f"{family.name}_total" if family.type == "counter" else family.name
                shown[name] = family.type
                labels[name] = {key for sample in family.samples for key in sample.labels} - {"le"}
        rows = {name: cells.split("|") for name, cells in ROW.findall(text("metrics.md")) if "_" in name}
        documented = {name: cells[0].strip() for name, cells in rows.items() if name not in LOSSES}
        assert documented == shown
        for name, has in labels.items():
            assert has <= set(re.findall(r"`(\w+)`", rows[name][1])), name

    def test_the_clients_are_there(self) -> None:
        with agent() as running:
            scraped = exposed(running)
        assert all(f"\n{prefix}" in scraped and f"`{prefix}*`" in text("metrics.md") for prefix in CLIENT)

    def test_every_note_is_on_a_metric(self) -> None:
        assert NOTES.keys() <= {name for name, _ in ROW.findall(text("metrics.md"))}

    def test_every_reason_is_told(self) -> None:
        rows = [name for name, _ in ROW.findall(text("metrics.md"))]
        assert tuple(rows[-len(LOSSES) :]) == LOSSES


@pytest.mark.parametrize(
    "name", ["configuration.md", "metrics.md", "comparison.md", "faq.md", "tour.md", "benchmarks.md"]
)
def test_links_lead_to_headings(name: str) -> None:
    for document, heading in LINK.findall(text(name)):
        there = {anchor(found) for found in re.findall(r"^#+ (.+)$", text(document or name), re.MULTILINE)}
        assert heading in there, (document, heading)


@pytest.mark.parametrize("name", ["configuration.md", "comparison.md", "faq.md"])
def test_metrics_that_are_named_exist(name: str) -> None:
    """A series of a histogram, such as `kprobe_duration_seconds_bucket`, exists if its metric does."""
    known = {row for row, _ in ROW.findall(text("metrics.md"))}
    for metric in re.findall(r"`(kprobe_[a-z_]+)(?:\{[^`]*\})?`", text(name)):
        assert re.sub(r"_(bucket|sum|count)$", "", metric) in known | {PREFIX}, metric


class TestComparison:
    ROWS = re.findall(
        r"^\| [^|]+ \| ([^|]+) \| \[\d\]\(benchmarks\.md#([\w-]+)\) \|$", text("comparison.md"), re.M
    )

    def test_it_has_figures(self) -> None:
        assert len(self.ROWS) >= 8

    @pytest.mark.parametrize(("figures", "section"), ROWS)
    def test_figures_are_those_of_the_benchmarks(self, figures: str, section: str) -> None:
        parts = re.split(r"^## (.+)$", text("benchmarks.md"), flags=re.MULTILINE)
        sections = {anchor(heading): body for heading, body in zip(parts[1::2], parts[2::2], strict=True)}
        measured = re.findall(NUMBER, sections[section])
        assert set(re.findall(NUMBER, figures)) <= set(measured)


def test_a_table_keeps_its_cells_apart() -> None:
    assert (
        table(["a", "b"], [["x | y", "two\n  lines"]]) == "| a | b |\n| --- | --- |\n| x \\| y | two lines |"
    )


def test_a_place_without_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="agent"):
        Template("metrics.md").filled(dict.fromkeys(("probes", "otlp", "reasons"), ""))
