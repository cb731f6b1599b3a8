"""What is built once for all tests of this directory, and of each processor only if a test asks for it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from release import wheels
from release.targets import TARGETS, Target
from tests.release.packages import Packages, staged


@pytest.fixture(scope="session", params=[pytest.param(target, id=target.debian) for target in TARGETS])
def target(request: pytest.FixtureRequest) -> Target:
    chosen: Target = request.param
    return chosen


@pytest.fixture(scope="session")
def built_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Target], list[Path]]:
    """Return the sdist and the wheel of this tree for a processor."""
    into = tmp_path_factory.mktemp("dist")
    return cache(lambda target: wheels.build(into, [target]))


@pytest.fixture(scope="session")
def built(built_for: Callable[[Target], list[Path]]) -> list[Path]:
    """The sdist and all wheels of this tree."""
    return list(dict.fromkeys(file for target in TARGETS for file in built_for(target)))


@pytest.fixture(scope="session")
def packages(
    built_for: Callable[[Target], list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Target], Packages]]:
    """Return the Debian and the RPM package of this tree for a processor."""
    with ExitStack() as stack:

        @cache
        def of(target: Target) -> Packages:
            files = stack.enter_context(staged(target, built_for(target)))
            return Packages(files, tmp_path_factory.mktemp(target.debian))

        yield of
