"""What is built once for all tests of this directory."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from release import wheels
from release.targets import TARGETS, Target
from tests.release.packages import Packages, build


@pytest.fixture(scope="session", params=[pytest.param(target, id=target.debian) for target in TARGETS])
def target(request: pytest.FixtureRequest) -> Target:
    chosen: Target = request.param
    return chosen


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sdist and the wheels of this tree."""
    return wheels.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def packages(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[Target, Packages]:
    """For each processor the Debian and the RPM package of this tree."""
    return {target: build(target, built, tmp_path_factory.mktemp(target.debian)) for target in TARGETS}
