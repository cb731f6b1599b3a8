"""What pyproject.toml says of libraries and of compiled modules is what the code needs."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTENSIONS = PYPROJECT["tool"]["setuptools"]["ext-modules"]


@pytest.mark.parametrize("name", ["opentelemetry-exporter-otlp", "opentelemetry-sdk"])
def test_the_version_is_exact_and_the_one_that_is_tested(name: str) -> None:
    """These have undocumented parts that the code uses."""
    assert f"{name}=={version(name)}" in PROJECT["dependencies"]


@pytest.mark.parametrize("extension", EXTENSIONS, ids=lambda extension: extension["name"])
def test_a_source_distribution_gets_every_file_that_is_included(extension: dict[str, Any]) -> None:
    included: set[str] = set()
    for source in map(Path, extension["sources"]):
        names = re.findall(r'^include "(.+)"', (ROOT / source).read_text(), re.MULTILINE)
        included.update(str(source.with_name(name)) for name in names)
    assert included == set(extension.get("depends", ()))
