"""The document of the benchmarks: what a run puts in, and what it leaves."""

from tests.bench.document import INTRODUCTION, merged

ORDER = ("Throughput", "A scrape", "A start")


def test_a_new_document_has_its_sections_in_order() -> None:
    document = merged("", {"A start": "slow", "Throughput": "much"}, ORDER)
    assert document == f"{INTRODUCTION}\n## 1. Throughput\n\nmuch\n\n## 3. A start\n\nslow\n"


def test_what_was_not_measured_stays() -> None:
    before = merged("", {"Throughput": "much", "A start": "slow\n\n| a |\n|---|\n| 1 |"}, ORDER)
    after = merged(before, {"Throughput": "more", "A scrape": "quick"}, ORDER)
    assert after == before.replace("much\n", "more\n\n## 2. A scrape\n\nquick\n")
    assert merged(after, {}, ORDER) == after


def test_a_benchmark_that_is_no_more_goes() -> None:
    assert merged("## 1. Gone\n\nold\n", {"A start": "slow"}, ORDER) == merged("", {"A start": "slow"}, ORDER)
