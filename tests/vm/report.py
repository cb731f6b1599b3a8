"""What pytest wrote about a run, judged: a run without a result is a failure, never a pass."""

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.vm import ROOT
from tests.vm.process import Ended

NEEDS = "needs "  # How the marker `needs` begins its reason; the feature follows.


@dataclass
class Result:
    """One run of pytest: how many tests did what, and whatever else was wrong."""

    name: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)


def judge(name: str, ended: Ended, junit: Path, absent: frozenset[str] | None = None) -> Result:
    """Reads a run's junit file.

    `absent`: the features that a kernel under test is known to lack. A test skipped there for
    another reason did not run where it should have, which is a failure. None: any skip is fine.
    """
    result = Result(name, ended.seconds)
    try:
        cases = list(ET.parse(junit).iter("testcase"))
    except (OSError, ET.ParseError):
        ended_how = "was ended" if ended.status is None else f"ended with status {ended.status}"
        where = junit.parent.relative_to(ROOT)
        result.problems.append(f"no result: it {ended_how}; its logs are in {where}")
    else:
        for case in cases:
            _count(result, case, absent)
        if not cases:
            result.problems.append("no test ran")
        elif ended.status != 0 and not result.failed:
            result.problems.append(f"ended with status {ended.status}")
    # What is wrong beside the tests is one failure more, so that the last line tells it too.
    if result.problems and not result.failed:
        result.failed += 1
    return result


def table(results: Iterable[Result]) -> str:
    """The results one below the other, what failed, and as the last line the sum."""
    results = list(results)
    width = max(len(result.name) for result in results)
    lines = ["", f"{'':{width}}  passed  failed  skipped    time"]
    lines += [
        f"{r.name:{width}}  {r.passed:6}  {r.failed:6}  {r.skipped:7}  {r.seconds:4.0f} s" for r in results
    ]
    lines += [f"FAILED {r.name}: {problem}" for r in results for problem in r.problems]
    passed, failed, skipped = (
        sum(getattr(result, kind) for result in results) for kind in ("passed", "failed", "skipped")
    )
    return "\n".join([*lines, f"{passed} passed, {failed} failed, {skipped} skipped"])


def _count(result: Result, case: ET.Element, absent: frozenset[str] | None) -> None:
    name = f"{case.get('classname')}::{case.get('name')}"
    skip = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        result.failed += 1
        result.problems.append(name)
    elif skip is None:
        result.passed += 1
    elif absent is None or _excused(skip, absent):
        result.skipped += 1
    else:
        result.failed += 1
        result.problems.append(f"{name} did not run: {skip.get('message', '')}")


def _excused(skip: ET.Element, absent: frozenset[str]) -> bool:
    """Whether the test ran and failed as expected, or names a feature known to be absent."""
    reason = skip.get("message", "")
    return skip.get("type") == "pytest.xfail" or reason.removeprefix(NEEDS) in absent
