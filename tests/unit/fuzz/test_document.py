"""The table of fuzzing results, and the part of a document that is regenerated."""

import pytest

from tests.fuzz.document import END, HEAD, SECTION, START, TITLE, merged, row, table
from tests.fuzz.run import Crash, Result

ORDER = ("configuration", "trace-text", "pages")
PAGES = Result("pages", 17, 1_234_567, 1_000_000, 5, 180.04, 0.0123, (Crash(18, "x"), Crash(19, "y")))
TEXT = Result("trace-text", 5, 10, 4, 0, 1.6, 2.5, ())


def test_a_row() -> None:
    cells = ("pages", "1,234,567", "180", "1,000,000", "234,562", "2", "12.3", "17", "2026-11-21")
    assert row(PAGES, "2026-11-21") == cells
    assert len(cells) == len(HEAD)
    assert "pages   1,234,567" in table([cells]).text()


def rows(document: str) -> list[str]:
    return [
        line.split(" | ")[0].removeprefix("| ") for line in document.splitlines() if line.startswith("| ")
    ][2:]


def test_a_new_document() -> None:
    document = merged("", [row(PAGES, "today"), row(TEXT, "today")], ORDER)
    assert document.startswith(TITLE + "\n## Fuzzing\n")
    assert rows(document) == ["trace-text", "pages"]
    assert "| pages | 1,234,567 | 180 |" in document


@pytest.mark.parametrize("after", ["", "\nThree crashes were mended.\n\n## Soak\n\n| a |\n| --- |\n| b |\n"])
def test_what_was_not_fed_stays_and_what_is_outside(after: str) -> None:
    before = merged("", [row(PAGES, "then")], ORDER) + after
    document = merged(before, [row(TEXT, "now")], ORDER)
    inside, outside = document.split(END)
    assert rows(inside) == ["trace-text", "pages"]
    assert "| then |" in document
    assert outside.strip() == after.strip()
    assert merged(document, [row(TEXT, "now")], ORDER) == document
    assert (document.count(START), document.count(END)) == (1, 1)


def test_a_target_that_is_no_more_goes() -> None:
    before = merged("", [("gone", *row(TEXT, "x")[1:])], ("gone",))
    assert rows(merged(before, [row(PAGES, "x")], ORDER)) == ["pages"]


def test_a_document_of_others_gets_a_section() -> None:
    document = merged("# Reliability\n\nMine.\n\n## Soak\n\nLong.\n", [row(PAGES, "x")], ORDER)
    assert document.startswith("# Reliability\n\nMine.\n\n## Soak\n\nLong.\n" + SECTION.partition(START)[0])
    assert rows(document) == ["pages"]
