"""``tool time`` against a program's own clock: each class, and the sum of all."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.tools.harness import Facts, Seen, ToolCase, parametrized, run_tool
from tests.kernel.tools.time_mix import PHASE, Mix, margin, near
from tests.support.trace_process import StartTrace

INTERVAL = 0.25
"""Seconds from one table to the next."""

CLASSES = ("running", "waiting_for_cpu", "lock", "pipe", "network", "poll", "sleep")

MOST_UNKNOWN = 0.25
"""The share of time that may be ``unaccounted``. Some hosts of tests record no event in their own agents'
threads, so that the switch from one of these to a thread is missing."""


def known_mix(seen: Seen) -> None:
    """What is missing from a class is ``unaccounted``.

    The moment at which the scheduler counts a thread as waiting, no longer as blocked, is that of the event
    on an idle machine alone.
    """
    rows = [row for row in seen.rows if row["tid"] == seen.facts["tid"]]
    found = {name: sum(row["seconds"] for row in rows if row["class"] == name) for name in CLASSES}
    whole = sum(row["seconds"] for row in rows)
    unknown = whole - sum(found.values())
    assert unknown < MOST_UNKNOWN * whole
    assert whole == near(seen.facts["wall"])
    for name, seconds in found.items():
        measured = seen.facts[name]
        within = margin(measured) + found["waiting_for_cpu"]
        if name == "lock":  # what is left of the time, so what interrupts took is missing in it
            within += abs(found["running"] - seen.facts["running"])
        assert measured - unknown - within <= seconds <= measured + within, (name, found)


def whole_time(seen: Seen) -> None:
    """In each interval the classes of the process's threads add up to the time that these had."""
    for one in seen.objects:
        [whole] = {row["of"] for row in one["rows"]}
        assert sum(row["seconds"] for row in one["rows"]) == pytest.approx(whole, abs=2e-5)
        assert sum(row["pct"] for row in one["rows"]) == pytest.approx(100, abs=0.2)
    passed = sum(one["seconds"] for one in seen.objects)
    assert passed > seen.facts["slept"]
    assert seen.total("seconds") == pytest.approx(passed, abs=0.001 * len(seen.objects))
    assert seen.total("seconds", **{"class": "sleep"}) == near(seen.facts["slept"])


def sleep() -> Facts:
    begin = time.monotonic()
    time.sleep(2 * PHASE)
    return {"slept": time.monotonic() - begin}


CASES = [
    ToolCase(f"time -p {{pid}} -L -i {INTERVAL}", lambda: Mix().measured(), known_mix),
    ToolCase(f"time -p {{pid}} -i {INTERVAL}", sleep, whole_time),
]


@parametrized(CASES)
def test_a_tool(case: ToolCase, trace: StartTrace) -> None:
    case.compare(run_tool(trace, case.command, case.load))


def seconds_of(output: bytes) -> dict[str, float]:
    """Return the seconds by class of a table."""
    lines = [line.split() for line in output.decode().splitlines()]
    return {words[0]: float(words[1]) for words in lines if len(words) == 4 and words[0] != "CLASS"}


def test_a_command(trace: StartTrace, on_cpu: Callable[[int], None]) -> None:
    """Its own clock says how long it slept at most: a slow machine wakes it late.

    Some hosts' kernels record no switch from the idle thread of another CPU.
    """
    on_cpu(0)
    code = (
        f"from time import *; begin = monotonic(); sleep({PHASE}); sleep({PHASE}); print(monotonic() - begin)"
    )
    tool = trace("time", "-c", f"python3 -S -c '{code}'", command="tool")
    assert tool.wait() == 0, tool.errors
    [passed] = map(float, re.findall(rb"^\d+\.\d+$", tool.output, re.MULTILINE))
    found = seconds_of(tool.output)
    assert 2 * PHASE - margin(PHASE) <= found["sleep"] <= passed + margin(PHASE)
    assert found.get("unaccounted", 0) < 0.005


@pytest.mark.parametrize(
    ("program", "class_"),
    [("import os; os.read(0, 1)", "pipe"), ("while True: pass", "running")],
    ids=["asleep", "running"],
)
def test_a_thread_without_an_event(trace: StartTrace, program: str, class_: str) -> None:
    """What it does at the start is read from /proc."""
    with subprocess.Popen(["python3", "-S", "-c", program], stdin=subprocess.PIPE) as process:
        while (name := Path(f"/proc/{process.pid}/stat").read_text().split()[2]) not in ("S", "R"):
            assert name
        time.sleep(0.5)
        tool = trace("time", "-p", str(process.pid), "-d", "0.5", command="tool")
        assert tool.wait() == 0, tool.errors
        process.kill()
    found = seconds_of(tool.output)
    whole, unknown = sum(found.values()), found.get("unaccounted", 0)
    assert found[class_] + found.get("waiting_for_cpu", 0) + unknown == pytest.approx(whole, abs=0.001)
    assert found[class_] > 0.05
    assert unknown < MOST_UNKNOWN * whole


def unreadable(task: Path) -> bool:
    """Whether a thread's stack may not be read, as that of a process that protects itself."""
    try:
        return not (task / "stack").read_bytes()
    except PermissionError:
        return True
    except OSError:
        return False


def test_all_threads(trace: StartTrace) -> None:
    """The time of each thread of the machine is there; of the idle ones by /proc, if that may be read."""
    tool = trace("time", "-d", "0.5", "--json", command="tool")
    assert tool.wait() == 0, tool.errors
    table = json.loads(tool.output)
    found = {row["class"]: row["seconds"] / table["seconds"] for row in table["rows"]}
    tasks = list(Path("/proc").glob("[0-9]*/task/[0-9]*"))
    assert sum(found.values()) == pytest.approx(len(tasks), rel=0.3)
    assert found.get("unaccounted", 0) <= sum(map(unreadable, tasks)) + MOST_UNKNOWN * len(tasks)


def test_names_choose_no_threads(trace: StartTrace) -> None:
    tool = trace("time", "--comm", "sh", command="tool")
    assert tool.wait() == 2
    assert "--comm: another thread wakes a thread" in tool.errors
