"""Every test that the tables of docs/trace-formats.md name exists."""

import ast
import re
from pathlib import Path

import pytest

UNIT = Path(__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs/trace-formats.md"

NAMED = re.compile(r"`tests/unit/([\w/]+\.py)::(\w+)(?:\[([^`]+)\])?`")
TESTS = sorted(set(NAMED.findall(DOCUMENT.read_text())))


def test_each_line_of_the_tables_names_a_test() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    bare = [row for row in rows if not NAMED.search(row)]
    assert [row for row in bare if "| test |" not in row] == []
    assert len(rows) - len(bare) > 40


@pytest.mark.parametrize(("file", "name", "parameter"), TESTS)
def test_it_exists(file: str, name: str, parameter: str) -> None:
    module = ast.parse((UNIT / file).read_text())
    assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    texts = {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
    assert not parameter or parameter in texts
