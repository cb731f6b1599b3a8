"""Files whose English keeps the rules of `tests.support.words`; these must not break them again."""

from pathlib import Path

import pytest

from tests.support.words import broken, prose

ROOT = Path(__file__).parents[2]


CLEAN = [
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("kprobe_exporter/**/*.py"))),
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md"))),
]


@pytest.mark.parametrize("name", CLEAN)
def test_clean_file_breaks_no_rule(name: str) -> None:
    assert [line for text in prose(ROOT / name) for line in broken(text)] == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The name is no name: write another.", "'is not a'"),
        ("The probe was told as lost.", "report, or count"),
        ("What arrived is counted.", "a noun"),
        ("Records are counted. Of text, each line is read once.", "begin with"),
        ("It takes some 30 minutes.", "about"),
        ("Then nobody reads it.", "name who"),
        ("Please leave out --json.", "omit"),
        (" ".join(["word"] * 26) + ".", "26 words"),
    ],
)
def test_broken_rule_is_reported(text: str, rule: str) -> None:
    [line] = broken(text)
    assert line.startswith(rule)


@pytest.mark.parametrize(
    "text",
    [
        "The event is no longer there, and there is no symbol.",
        "What does this kernel support?",
        " ".join(["word"] * 25) + ".",
    ],
)
def test_allowed_sentence(text: str) -> None:
    assert [*broken(text)] == []
