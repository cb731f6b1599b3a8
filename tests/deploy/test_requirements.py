"""The locked versions: they fit pyproject.toml and have hashes, and the SBOM names them all."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy/requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = re.compile(r"(\S+)==(\S+)( ; [^\\]+)? \\((?:\n {4}--hash=sha256:[0-9a-f]{64}(?: \\)?)+)")


def locked(name: str) -> dict[str, Version]:
    """Return the locked versions by package. Each line that is no comment must belong to one, with hashes."""
    text = re.sub(r"^ *#.*\n", "", (HERE / name).read_text(), flags=re.MULTILINE)
    found = [*PINNED.finditer(text)]
    assert PINNED.sub("", text).strip() == ""
    assert all("--hash" in pinned[4] for pinned in found)
    return {canonicalize_name(pinned[1]): Version(pinned[2]) for pinned in found}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("runtime.txt", PROJECT["project"]["dependencies"]),
        ("runtime.txt", PROJECT["project"]["optional-dependencies"]["names"]),
        ("build.txt", PROJECT["build-system"]["requires"]),
        ("release.txt", PROJECT["dependency-groups"]["release"]),
    ],
)
def test_what_the_project_needs_is_locked(name: str, wanted: list[str]) -> None:
    """If this fails after a change of pyproject.toml, run scripts/lock."""
    versions = locked(name)
    for requirement in map(Requirement, wanted):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_bill_of_materials_names_what_is_locked() -> None:
    bill = json.loads((HERE / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "kprobe-exporter")
    components = bill["components"]
    found = {canonicalize_name(each["name"]): Version(each["version"]) for each in components}
    assert found == locked("runtime.txt")
    for each in components:
        assert each["purl"] == f"pkg:pypi/{canonicalize_name(each['name'])}@{each['version']}"


def test_each_dependency_in_it_is_one_of_its_components() -> None:
    bill = json.loads((HERE / "sbom.cdx.json").read_text())
    graph = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    names = {each["bom-ref"] for each in (*bill["components"], bill["metadata"]["component"])}
    assert graph.keys() == names
    assert {name for needed in graph.values() for name in needed} <= names
