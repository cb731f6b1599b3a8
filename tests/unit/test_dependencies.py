"""Libraries of which the code uses undocumented parts are required in one version."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", ["opentelemetry-exporter-otlp", "opentelemetry-sdk", "uvicorn"])
def test_the_version_is_exact_and_the_one_that_is_tested(name: str) -> None:
    assert f"{name}=={version(name)}" in PROJECT["dependencies"]
