"""The costs of uprobes in the examples are those measured in docs/benchmarks.md."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRING = (ROOT / "docs/benchmarks.md").read_text().partition("## 7. A firing")[2]
DOCUMENT = (ROOT / "docs/examples.md").read_text()
PACK = ROOT / "examples/packs/userspace.yaml"


def nanoseconds(kind: str) -> int:
    """Return the ns that one firing costs on a real processor: measured, or else the constant."""
    (row,) = re.findall(rf"^\| {kind} \|(.*)\|$", FIRING, re.MULTILINE)
    *_, measured, _, constant = (cell.strip() for cell in row.split("|"))
    return int((measured or constant).replace(",", ""))


def microseconds(*kinds: str) -> str:
    return f"{sum(map(nanoseconds, kinds)) / 1000:.1f} µs"


@pytest.mark.parametrize(
    "sentence",
    [
        f"program {microseconds('uprobe')} at each call",
        f"about {nanoseconds('uprobe') / nanoseconds('kprobe'):.0f} times as much as a kprobe",
        f"Two events, {microseconds('uprobe', 'uretprobe')}",
    ],
)
def test_the_pack_says_what_was_measured(sentence: str) -> None:
    assert sentence in re.sub(r"\n\s*# ?", " ", PACK.read_text())


def test_the_document_says_so_too() -> None:
    (row,) = re.findall(r"^\| `examples/packs/userspace\.yaml` .*$", DOCUMENT, re.MULTILINE)
    assert f"{nanoseconds('uprobe') / 1000:.0f} µs for each call" in row


def test_no_other_pack_has_a_probe_in_a_program() -> None:
    """The costs of another pack with a uprobe would have to be checked here as well."""
    files = [
        file.name
        for file in PACK.parent.glob("*.yaml")
        if re.search(r"\bu(probe|retprobe|call):", file.read_text())
    ]
    assert files == [PACK.name]
