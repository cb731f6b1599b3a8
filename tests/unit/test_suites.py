"""`make test` runs every test file on at least one kernel or on this machine, but for long tests."""

from pathlib import Path

import pytest

from tests.unit.slow import SLOW
from tests.vm import ROOT
from tests.vm.__main__ import HOST_SUITES, MACHINE_TESTS, REQUESTED_SUITES, SHARES, VM_SUITE, usual_tests
from tests.vm.draw import drawn
from tests.vm.foreign import ARCHITECTURES
from tests.vm.kernels import CORE, DEFAULT, KERNELS, LONG, OTHERWISE, WHOLE, Kernel

FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))

LOCKS_DOWN = "tests/kernel/zz_last/test_lockdown.py"


def runs(places: tuple[str, ...], file: str) -> bool:
    return any(Path(file).is_relative_to(place) for place in places)


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_run(file: str) -> None:
    """The suites of the host's kernel do not count, because it may lack a feature that a test needs."""
    suites = {**HOST_SUITES, **REQUESTED_SUITES}
    on_this_machine = any(
        runs(places, file) for name, places in suites.items() if name not in ("host-kernel", "pid-namespace")
    )
    in_a_vm = runs(VM_SUITE, file) and any(file not in kernel.elsewhere for kernel in WHOLE)
    otherwise = runs((*MACHINE_TESTS, *HOST_SUITES["pid-namespace"]), file)
    assert on_this_machine or (otherwise if file in OTHERWISE else in_a_vm)


@pytest.mark.parametrize("kernel", WHOLE, ids=lambda kernel: kernel.series)
def test_the_shares_together_are_the_suite(kernel: Kernel) -> None:
    """Each share has about as many files as the others, and the core of the other kernels is in all."""
    shares = [usual_tests(kernel, run) for run in range(SHARES["guests"])]
    assert {test.partition("::")[0] for share in shares for test in share} == {
        test.partition("::")[0] for test in usual_tests(kernel, None)
    }
    files = [{test for test in share if "::" not in test} for share in shares]
    always = set.intersection(*files)
    assert max(map(len, files)) - min(map(len, files)) <= 1
    assert always == {test for test in CORE if "::" not in test} - set(kernel.elsewhere)
    assert sum(len(share - always) for share in files) == len(set.union(*files) - always)


@pytest.mark.parametrize("kernel", WHOLE, ids=lambda kernel: kernel.series)
def test_a_share_has_the_order_of_the_suite(kernel: Kernel) -> None:
    """The last file of the suite leaves the kernel locked down, so nothing may come after it."""
    suite = list(dict.fromkeys(test.partition("::")[0] for test in usual_tests(kernel, None)))
    for run in range(SHARES["guests"]):
        places = [suite.index(test.partition("::")[0]) for test in usual_tests(kernel, run)]
        assert places == sorted(places)
    last = [usual_tests(kernel, run)[-1] for run in range(SHARES["guests"])]
    assert (LOCKS_DOWN in last) == (LOCKS_DOWN in suite)


def test_a_share_keeps_the_order_and_repeats_no_test() -> None:
    tests = ("tests/vm", "tests/unit/vm", "tests/unit/test_a.py::one", "tests/unit/test_a.py::two")
    always = ("tests/unit/test_b.py::one", "tests/unit/test_b.py::three")
    assert drawn(tests, 2, 6, always=always) == ["tests/unit/vm/test_process.py", *always]
    assert drawn(tests, 2, 7, always=always) == [*tests[2:], *always]
    assert drawn(tests, 2, None, left_out=("tests/unit",)) == []
    assert drawn(("tests/unit/test_b.py",), 1, 0, always=always[:1]) == ["tests/unit/test_b.py"]


def test_every_place_is_there() -> None:
    suites = [*HOST_SUITES.values(), *REQUESTED_SUITES.values()]
    places = {place for suite in suites for place in suite if place.startswith("tests/")}
    places = {place.partition("::")[0] for place in places}
    places.update(VM_SUITE, *(kernel.elsewhere for kernel in WHOLE))
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("series", KERNELS)
def test_what_is_left_to_another_kernel_runs_there(series: str) -> None:
    here = KERNELS[series]
    others = [kernel for kernel in WHOLE if kernel is not here]
    for place in here.elsewhere:
        assert runs(VM_SUITE, place), f"{place} is not run on {series} anyway"
        assert any(place not in kernel.elsewhere for kernel in others), place


@pytest.mark.parametrize("test", [*LONG, *sorted(SLOW)])
def test_what_is_long_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name.partition('[')[0].rpartition('::')[2]}(" in (ROOT / file).read_text()
    assert runs(VM_SUITE, file) or test in SLOW


@pytest.mark.parametrize(
    ("series", "names", "newest"),
    [
        ("6.1", ["linux-image-6.1.0-9-amd64", "linux-image-6.1.0-10-amd64"], "6.1.0-10"),
        ("6.1", ["linux-image-6.1.0-9-arm64", "linux-image-6.1.0-9-cloud-amd64"], None),
        ("6.1-arm64", ["linux-image-6.1.0-9-arm64", "linux-image-6.1.0-56-arm64-dbg"], "6.1.0-9"),
        (
            "6.12-arm64-16k",
            ["linux-image-6.12.9+deb12-arm64-16k", "linux-image-6.12.117+deb12-arm64"],
            "6.12.9+deb12",
        ),
    ],
)
def test_which_package_of_a_series_is_taken(series: str, names: list[str], newest: str | None) -> None:
    assert KERNELS[series].newest(names) == newest


def test_a_kernel_is_of_this_machine_or_of_a_known_architecture() -> None:
    for kernel in KERNELS.values():
        arch = kernel.suite.arch
        assert kernel.flavour.split("-")[0] == arch
        assert (kernel.foreign is None) == (arch == "amd64")
        assert kernel.foreign is None or kernel.foreign == ARCHITECTURES[arch]


def test_one_kernel_of_each_other_architecture_is_run_without_being_named() -> None:
    """A core of it: its root file system takes a minute or two to make, and each of its tests some 9 s."""
    foreign = [KERNELS[series] for series in DEFAULT if KERNELS[series].foreign]
    assert [kernel.foreign for kernel in foreign] == list(ARCHITECTURES.values())
    assert all(kernel.core for kernel in foreign)


@pytest.mark.parametrize("series", [series for series, kernel in KERNELS.items() if kernel.core])
def test_a_core_is_a_part_of_the_whole(series: str) -> None:
    core = {place.partition("::")[0] for place in KERNELS[series].core}
    assert all(runs(VM_SUITE, file) for file in core)
