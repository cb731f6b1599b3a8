"""`make test` reports what was skipped and why; a skip that the suite could have prevented is a failure."""

from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from tests.vm.process import Ended
from tests.vm.report import Result, in_a_vm, judge, on_this_machine, table

HOST = on_this_machine(root=True)


@pytest.fixture
def junit(tmp_path: Path) -> Path:
    return tmp_path / "junit.xml"


def write(junit: Path, *cases: str) -> None:
    junit.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def case(name: str, inside: str = "") -> str:
    return f'<testcase classname="tests.kernel.test_x" name="{name}">{inside}</testcase>'


def skipped(name: str, reason: str, kind: str = "pytest.skip") -> str:
    return case(name, f'<skipped type="{kind}" message={quoteattr(reason)}/>')


@pytest.mark.parametrize("reason", ["needs kprobe_events", "needs events", "not in a VM", "no IPv6 here"])
def test_what_this_machine_lacks_excuses_a_skip(junit: Path, reason: str) -> None:
    write(junit, case("one"), skipped("two", reason))
    result = judge("host", Ended(0, 1), junit, HOST)
    assert (result.passed, result.failed, result.skipped) == (1, 0, 1)
    assert result.skips == {reason: ["tests.kernel.test_x::two"]}


@pytest.mark.parametrize(
    "reason",
    [
        "tracefs cannot be mounted: Operation not permitted",
        "no mount namespace: Operation not permitted",
        "no promtool: `make test` fetches it, or install Debian's prometheus package",
        "no gcc",
        "collection skipped",
        "",
    ],
)
def test_what_the_suite_could_have_set_up_does_not(junit: Path, reason: str) -> None:
    write(junit, case("one"), skipped("two", reason))
    result = judge("host", Ended(0, 1), junit, HOST)
    assert (result.passed, result.failed, result.skipped) == (1, 1, 0)
    assert result.problems == [f"tests.kernel.test_x::two did not run: {reason}"]
    # Without root the suite can set up nothing.
    assert judge("host", Ended(0, 1), junit, on_this_machine(root=False)).failed == 0


def test_in_a_vm_only_what_its_kernel_is_known_to_lack_excuses_a_skip(junit: Path) -> None:
    write(
        junit,
        skipped("one", "needs new_file"),
        skipped("two", "needs kprobe_events"),
        skipped("three", "no IPv6 here"),
    )
    result = judge("6.1", Ended(0, 1), junit, in_a_vm(frozenset({"new_file"})))
    assert (result.failed, result.skips) == (2, {"needs new_file": ["tests.kernel.test_x::one"]})


def test_a_failure_that_was_expected_is_listed(junit: Path) -> None:
    write(junit, skipped("one", "the kernel's fault", "pytest.xfail"))
    result = judge("6.1", Ended(0, 1), junit, in_a_vm(frozenset()))
    assert (result.failed, list(result.skips)) == (0, ["failed as expected: the kernel's fault"])


def test_every_reason_is_listed_before_the_closing_line() -> None:
    many = [f"tests.kernel.test_x::number{n}" for n in range(12)]
    host = Result("host", 61, 5, 0, {"needs kprobe_events": many, "not in a VM": ["tests.test_y::one"]})
    kernel = Result("6.12", 600, 7, 1, {}, ["tests.test_z::bad"])
    assert table([host, kernel]).splitlines()[-4:] == [
        "skipped host: needs kprobe_events: 12 tests",
        "skipped host: not in a VM: tests.test_y::one",
        "FAILED 6.12: tests.test_z::bad",
        "12 passed, 1 failed, 13 skipped",
    ]
