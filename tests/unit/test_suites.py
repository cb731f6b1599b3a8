"""`make test` runs every test file on at least one kernel or on this machine."""

from pathlib import Path

import pytest

from tests.vm import ROOT
from tests.vm.__main__ import HOST_SUITES, suite_on
from tests.vm.kernels import KERNELS

FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


def runs(places: tuple[str, ...], file: str) -> bool:
    return any(Path(file).is_relative_to(place) for place in places)


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_run(file: str) -> None:
    """The suite "host-kernel" does not count, as this machine's own kernel may lack what a test needs."""
    kernels = [kernel for kernel in KERNELS.values() if runs(suite_on(kernel), file)]
    on_any = any(runs(places, file) for name, places in HOST_SUITES.items() if name != "host-kernel")
    assert on_any or any(file not in kernel.elsewhere for kernel in kernels)


def test_every_place_is_there() -> None:
    places = {place for suite in HOST_SUITES.values() for place in suite if place.startswith("tests/")}
    for kernel in KERNELS.values():
        places.update(suite_on(kernel), kernel.elsewhere)
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("series", KERNELS)
def test_what_is_left_to_another_kernel_runs_there(series: str) -> None:
    here = KERNELS[series]
    others = [kernel for kernel in KERNELS.values() if kernel is not here]
    for place in here.elsewhere:
        assert runs(suite_on(here), place), f"{place} is not run on {series} anyway"
        assert any(runs(suite_on(kernel), place) and place not in kernel.elsewhere for kernel in others), (
            place
        )
