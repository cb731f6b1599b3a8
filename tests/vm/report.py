"""Judges pytest's results: a run without a result is a failure, never a pass."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.vm import ROOT
from tests.vm.process import Ended

NEEDS = "needs "
"""The prefix of the reason of the marker `needs`, before the feature. No other skip's reason has it."""

OTHER_MACHINE = "the register or instruction is x86-64's"
"""The reason of tests of one architecture, on another one."""

BEYOND_THE_SUITE = re.compile(
    rf"{NEEDS}.*"
    rf"|{OTHER_MACHINE}|no IPv6 here|one CPU, or one that cannot go|no header of x86_64"
    "|not in a VM|not on a machine that is used on|UPDATE_IMAGES=1 makes the picture anew"
)
"""Reasons for skips on this machine that no suite can avoid: its kernel and CPUs are given, and some tests
are for VMs. Mounting, installing or building what tests need is the suite's own task."""

SHOWN = 3
"""The number of tests that are named for one reason; if there are more, only their number is shown."""

Excused = Callable[[str], bool]
"""Whether a skip for this reason is acceptable."""


@dataclass
class Result:
    """One run of pytest: the numbers of tests by outcome, and other problems."""

    name: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skips: dict[str, list[str]] = field(default_factory=dict)
    """The skipped tests by reason."""
    problems: list[str] = field(default_factory=list)

    @property
    def skipped(self) -> int:
        return sum(map(len, self.skips.values()))


def judge(name: str, ended: Ended, junit: Path, excused: Excused) -> Result:
    """Judge a run by its junit file. A skip without an excuse is a failure: the test should have run."""
    result = Result(name, ended.seconds)
    try:
        cases = list(ET.parse(junit).iter("testcase"))
    except (OSError, ET.ParseError):
        ended_how = "was ended" if ended.status is None else f"ended with status {ended.status}"
        where = junit.parent.relative_to(ROOT)
        result.problems.append(f"no result: it {ended_how}; its logs are in {where}")
    else:
        for case in cases:
            _count(result, case, excused)
        if not cases:
            result.problems.append("no test ran")
        elif ended.status != 0 and not result.failed:
            result.problems.append(f"ended with status {ended.status}")
    # A problem outside the tests counts as one failure, so that the last line shows it.
    if result.problems and not result.failed:
        result.failed += 1
    return result


def in_a_vm(absent: frozenset[str]) -> Excused:
    """On a kernel under test, only its machine and the features that it is known to lack excuse a skip."""
    lacks = {f"{NEEDS}{feature}" for feature in absent}
    return lambda reason: reason in lacks or reason == OTHER_MACHINE


def on_this_machine(*, root: bool) -> Excused:
    """Only what a suite cannot set up excuses a skip; without root, every reason does."""
    return lambda reason: not root or BEYOND_THE_SUITE.fullmatch(reason) is not None


def table(results: Iterable[Result]) -> str:
    """The results one below the other, the skips with reasons, the failures, and at the end the sum."""
    results = list(results)
    width = max(len(result.name) for result in results)
    lines = ["", f"{'':{width}}  passed  failed  skipped    time"]
    lines += [
        f"{r.name:{width}}  {r.passed:6}  {r.failed:6}  {r.skipped:7}  {r.seconds:4.0f} s" for r in results
    ]
    lines += [
        f"skipped {r.name}: {reason}: {_named(tests)}"
        for r in results
        for reason, tests in sorted(r.skips.items())
    ]
    lines += [f"FAILED {r.name}: {problem}" for r in results for problem in r.problems]
    passed, failed, skipped = (
        sum(getattr(result, kind) for result in results) for kind in ("passed", "failed", "skipped")
    )
    return "\n".join([*lines, f"{passed} passed, {failed} failed, {skipped} skipped"])


def _named(tests: list[str]) -> str:
    return ", ".join(tests) if len(tests) <= SHOWN else f"{len(tests)} tests"


def _count(result: Result, case: ET.Element, excused: Excused) -> None:
    name = f"{case.get('classname')}::{case.get('name')}"
    skip = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        result.failed += 1
        result.problems.append(name)
    elif skip is None:
        result.passed += 1
    else:
        reason = skip.get("message", "")
        expected = skip.get("type") == "pytest.xfail"
        if expected or excused(reason):
            result.skips.setdefault(f"failed as expected: {reason}" if expected else reason, []).append(name)
        else:
            result.failed += 1
            result.problems.append(f"{name} did not run: {reason}")
