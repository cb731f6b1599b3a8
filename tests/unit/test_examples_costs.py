"""The costs of uprobes in the packs are those measured in docs/benchmarks.md."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRING = (ROOT / "docs/benchmarks.md").read_text().partition("## 7. A firing")[2]
DOCUMENT = (ROOT / "docs/examples.md").read_text()
PACKS = ROOT / "examples/packs"
OF_PROGRAMS = ("libc", "openssl", "postgresql", "python")


def nanoseconds(kind: str) -> int:
    """Return the ns that one firing costs on a real processor: measured, or else the constant."""
    (row,) = re.findall(rf"^\| {kind} \|(.*)\|$", FIRING, re.MULTILINE)
    *_, measured, _, constant = (cell.strip() for cell in row.split("|"))
    return int((measured or constant).replace(",", ""))


def microseconds(*kinds: str) -> str:
    return f"{sum(map(nanoseconds, kinds)) / 1000:.1f} µs"


def text(pack: str) -> str:
    """Return a pack with its comments joined to lines."""
    return re.sub(r"\n\s*# ?", " ", (PACKS / f"{pack}.yaml").read_text())


UPROBE = microseconds("uprobe")
USDT_PAIR = f"{2 * nanoseconds('uprobe') / 1000:.1f} µs"
COMPARED = f"about {nanoseconds('uprobe') / nanoseconds('kprobe'):.0f} times as much as a kprobe"
CALL = f"events, {microseconds('uprobe', 'uretprobe')}"


@pytest.mark.parametrize(
    ("pack", "sentence"),
    [
        ("libc", f"program {UPROBE} at each call"),
        ("libc", COMPARED),
        ("libc", f"Two {CALL}"),
        ("openssl", f"program {UPROBE} at each call"),
        ("openssl", COMPARED),
        ("openssl", f"Two {CALL}"),
        ("python", f"program {UPROBE} at each firing"),
        ("python", f"Two events, {USDT_PAIR}"),
        ("postgresql", f"server process {UPROBE} at each firing, a pair {USDT_PAIR}"),
        ("postgresql", f"Only counted, {UPROBE}"),
        ("postgresql", f"Two events, {USDT_PAIR}"),
    ],
)
def test_the_pack_says_what_was_measured(pack: str, sentence: str) -> None:
    assert sentence in text(pack)


@pytest.mark.parametrize("pack", OF_PROGRAMS)
def test_no_other_cost_of_a_firing_is_named(pack: str) -> None:
    named = set(re.findall(r"\d+\.\d+ µs", text(pack)))
    assert named <= {UPROBE, USDT_PAIR, microseconds("uprobe", "uretprobe")}


@pytest.mark.parametrize("pack", OF_PROGRAMS)
def test_the_document_says_so_too(pack: str) -> None:
    (row,) = re.findall(rf"^\| `examples/packs/{pack}\.yaml` .*$", DOCUMENT, re.MULTILINE)
    assert f"{nanoseconds('uprobe') / 1000:.0f} µs" in row


def test_the_limit_allows_as_many_pairs_as_the_pack_says() -> None:
    limits = (ROOT / "docs/configuration.md").read_text()
    (single,) = re.findall(r"^\| `uprobe`, `usdt` \| 3 µs \| ([\d,]+) \|", limits, re.MULTILINE)
    often = int(single.replace(",", "")) // 2
    assert f"allows a pair {often:,} times a second on 2 CPUs" in text("postgresql")


def test_no_other_pack_has_a_probe_in_a_program() -> None:
    """The costs of another pack with a uprobe would have to be checked here as well."""
    files = [
        file.stem
        for file in sorted(PACKS.glob("*.yaml"))
        if re.search(r"\bu(probe|retprobe|call|sdt):", file.read_text())
    ]
    assert files == list(OF_PROGRAMS)
