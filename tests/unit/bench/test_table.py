"""A benchmark's table, for a terminal and as Markdown."""

from tests.bench.table import Table, reached

TABLE = Table(
    "Throughput",
    "How much.",
    ("", "events/s", "ratio"),
    (("text", "1,000", "1.00"), ("cat | awk", "20", "0.02")),
    ("One note.", reached("at least 10", "11", ok=True)),
)


def test_text_is_aligned() -> None:
    assert TABLE.text() == (
        "Throughput\n"
        "How much.\n"
        "\n"
        "           events/s  ratio\n"
        "text          1,000   1.00\n"
        "cat | awk        20   0.02\n"
        "\n"
        "- One note.\n"
        "- Goal: at least 10. Reached: 11."
    )


def test_markdown_escapes_what_would_end_a_cell() -> None:
    assert TABLE.markdown() == (
        "How much.\n"
        "\n"
        "|  | events/s | ratio |\n"
        "| --- | ---: | ---: |\n"
        "| text | 1,000 | 1.00 |\n"
        "| cat &#124; awk | 20 | 0.02 |\n"
        "\n"
        "- One note.\n"
        "- Goal: at least 10. Reached: 11."
    )


def test_a_table_without_notes() -> None:
    table = Table("T", "About.", ("a",), (("b",),))
    assert table.text() == "T\nAbout.\n\na\nb"
    assert table.markdown() == "About.\n\n| a |\n| --- |\n| b |"


def test_a_goal_that_was_missed_says_so() -> None:
    assert reached("10 at the most", "11", ok=False) == "Goal: 10 at the most. Missed: 11."
