"""What pyproject.toml says of libraries and of compiled modules is what the code needs."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTENSIONS = PYPROJECT["tool"]["setuptools"]["ext-modules"]
HEADERS = [place for extension in EXTENSIONS for place in extension.get("include-dirs", ())]


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module imports from other packages, with the names of their modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_libraries_imported_by_public_names() -> None:
    """An undocumented part of a library would need one exact version of it."""
    ours = {*sys.stdlib_module_names, "kprobe_exporter"}
    found = {
        (path.name, name)
        for path in (ROOT / "kprobe_exporter").rglob("*.py")
        for name in imported(ast.parse(path.read_text()))
        if name.partition(".")[0] not in ours
    }
    assert len(found) > 30
    assert [one for one in found if re.search(r"(^|\.)_(?!_version__$)", one[1])] == []


def included(file: Path) -> Iterator[Path]:
    """Yield the project's files that a source in C or Cython includes, and what these include."""
    names = re.findall(r'^(?:#?include|cdef extern from) "(.+?)"', (ROOT / file).read_text(), re.MULTILINE)
    places = [file.parent, *map(Path, HEADERS)]
    found = [next(place / name for place in places if (ROOT / place / name).exists()) for name in names]
    declarations = file.with_suffix(".pxd")
    if file.suffix == ".pyx" and (ROOT / declarations).exists():
        found.append(declarations)
    for one in found:
        yield one
        yield from included(one)


@pytest.mark.parametrize("extension", EXTENSIONS, ids=lambda extension: extension["name"])
def test_a_source_distribution_gets_every_file_that_is_included(extension: dict[str, Any]) -> None:
    found = {str(file) for source in extension["sources"] for file in included(Path(source))}
    assert found == set(extension.get("depends", ()))
