"""docs/comparison.md lists ebpf_exporter's examples, and says why one has no configuration here."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples/ebpf_exporter"
TESTS = ROOT / "tests/kernel/ebpf_exporter"

SECTION = (ROOT / "docs/comparison.md").read_text().partition("## ebpf_exporter's examples\n")[2]
ROWS = dict(re.findall(r"^\| ([\w.-]+) \| (.+) \|$", SECTION.partition("\n## ")[0], re.MULTILINE))
ROWS.pop("example")

FILES = {path.stem for path in EXAMPLES.glob("*.yaml")}


def test_there_are_47() -> None:
    assert len(ROWS) == 47


def test_each_has_a_configuration_or_a_reason() -> None:
    without = {name for name, text in ROWS.items() if text.startswith("**no**: ")}
    in_another = {name: re.findall(r"`([\w-]+)\.yaml`", text) for name, text in ROWS.items()}
    for name in ROWS.keys() - without - FILES:
        assert set(in_another[name]) & FILES, name
    assert ROWS.keys() - without >= FILES


def test_each_is_provoked_by_a_test() -> None:
    """The names of the examples stand in EXAMPLES of one module each."""
    names = [
        name
        for path in sorted(TESTS.glob("test_*.py"))
        for names in re.findall(r"^EXAMPLES = \((.*?)\)$", path.read_text(), re.MULTILINE | re.DOTALL)
        for name in re.findall(r'"([\w-]+)"', names)
    ]
    assert sorted(names) == sorted(FILES)
