"""The figures of a soak go into their own section of the document, and nothing else changes."""

from tests.faults.soaking import END, START, merged, table

FIGURES = {
    "kernel": "6.12.1",
    "minutes": 30.0,
    "probes": 50,
    "reloads": 180,
    "scrapes": 1800,
    "deleted": 60,
    "hits": 1_000_000.0,
    "events": 900_000.0,
    "lost": {"overrun": 2454.0, "dropped": 0.0, "unpaired": 3.0},
    "missing": 2454.0,
    "resident_before": 80e6,
    "resident_after": 80.8e6,
    "descriptors": 24,
    "threads": 6,
    "definitions": 108,
    "most_definitions": 109,
    "slowest_scrape": 1.284,
}


def test_a_document_gets_the_section_once() -> None:
    first = merged("# Reliability\n\n## Fuzzing\n\nFed.\n", "one")
    assert first.startswith("# Reliability\n\n## Fuzzing\n\nFed.\n\n## Soak\n")
    again = merged(first + "\n## Faults\n\nMany.\n", r"two \1")
    assert again.count(START) == again.count(END) == again.count("## Soak") == 1
    assert "one" not in again
    assert r"two \1" in again
    assert again.endswith("\n## Faults\n\nMany.\n")


def test_an_empty_document_gets_a_title() -> None:
    assert merged("", "one").startswith("# Reliability\n")


def test_the_figures_are_told() -> None:
    rows = {row[0]: row[1] for row in table(FIGURES, "2026-01-01").rows}
    assert rows["losses told"] == "overrun 2,454, unpaired 3"
    assert rows["hits of unchanged, recorded probes that are neither event nor told loss"] == "0"
    assert rows["resident memory, minutes 5 to 15, MB"] == "80.00"
    assert rows["resident memory, minutes 20 to 30, MB"] == "80.80"
    assert rows["growth"] == "+1.00 %"
