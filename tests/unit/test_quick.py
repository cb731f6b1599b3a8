"""The tests that `make quick` chooses for changed files."""

from pathlib import Path

import pytest

from tests.quick import choose


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["kprobe_exporter/elf/reader.py"], ["tests/unit/elf/test_reader.py"]),
        (["kprobe_exporter/source/_pages.pyx"], ["tests/unit/source/test_pages.py"]),
        (["kprobe_exporter/errors.py", "tests/unit/test_errors.py"], ["tests/unit/test_errors.py"]),
        (
            ["kprobe_exporter/elf/notes.py"],
            ["tests/unit/elf/test_usdt.py", "tests/unit/elf/usdt/test_notes.py"],
        ),
        (["kprobe_exporter/removed.py"], []),
        (
            [
                "tests/unit/elf/test_gone.py",
                "tests/unit/conftest.py",
                "README.md",
                "tests/kernel/test_counts.py",
            ],
            [],
        ),
    ],
)
def test_tests_of_changed_files(changed: list[str], tests: list[str], tmp_path: Path) -> None:
    for name in ("elf/test_reader.py", "elf/test_other.py", "source/test_pages.py", "test_errors.py"):
        written(tmp_path / "tests/unit" / name, "import kprobe_exporter.elf\n")
    for name in ("elf/test_usdt.py", "elf/usdt/test_notes.py"):
        written(tmp_path / "tests/unit" / name, "from kprobe_exporter.elf.notes import read\n")
    assert choose(changed, tmp_path) == tests


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
