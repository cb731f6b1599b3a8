"""The corpus of probe definitions, tests/fixtures/definitions.txt, as values."""

import re
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from kprobe_exporter.errors import GrammarError

Verdict = Literal["good", "bad", "live", "strict"]

FILE = Path(__file__).parents[2] / "fixtures" / "definitions.txt"


def assert_points_into(text: str, error: GrammarError) -> None:
    """Assert that the error points to a place in this text."""
    assert error.text == text
    assert 0 <= error.column <= len(text)


class Case(NamedTuple):
    """One definition; the head of the fixture explains the verdicts."""

    verdict: Verdict
    text: str
    why: str


def corpus() -> list[Case]:
    """Return all definitions of the fixture, with their abbreviations expanded."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [_case(line) for line in lines if line and not line.startswith("=")]


def _case(line: str) -> Case:
    verdict, _, rest = line.partition(" |")
    text, _, why = rest.rpartition("| ")
    text = text.removeprefix(" ").removesuffix(" ").replace("{t}", "\t")
    text = re.sub(r"\{([^{}*]+)\*(\d+)\}", lambda found: found[1] * int(found[2]), text)
    for known in get_args(Verdict):
        if verdict == known:
            return Case(known, text, why)
    raise ValueError(f"no verdict: {line}")
