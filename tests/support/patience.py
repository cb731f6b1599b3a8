"""How long a test waits: the seconds that an idle machine needs, multiplied by this machine's slowness.

An emulated CPU, a busy machine and a fast one differ by a factor of thirty. A test states the seconds that an
idle machine may take, and `patience` scales them, so that no time-out is chosen for the slowest machine.
A time-out only bounds how long a failure takes; scaling it loosens no assertion.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REFERENCE = 0.15
"""Seconds that `_import_time` measures on an idle core of 2.5 GHz."""

MOST = 25.0
"""The largest factor, of an emulated CPU beside other loads. A machine that is slower still shows up as
failing tests."""

LONGEST = 500.0
"""Seconds of the longest wait: its test then fails before its suite is ended for a hang."""

_VARIABLE = "KPROBE_EXPORTER_TEST_SLOWNESS"


def slowness() -> float:
    """How many times longer than on the reference machine an import takes here, from 1 to MOST.

    It is measured once, and again when a wait is over; child processes inherit it through the environment.
    """
    return float(os.environ[_VARIABLE]) if _VARIABLE in os.environ else _measured(1.0)


def patience(seconds: float) -> float:
    """The seconds that a test waits here for something that takes an idle machine at most `seconds`."""
    return seconds * slowness()


def eventually(true: Callable[[], object], seconds: float = 20, pause: float = 0.02) -> None:
    """Wait until a condition holds that another process or the kernel is about to fulfil.

    Between two looks it sleeps for `pause` seconds; with 0 its processor stays busy. Raises AssertionError if
    the condition does not hold within `patience(seconds)`, also of the machine as busy as it is by then. It
    waits for LONGEST at most, or for `seconds` if that is more.
    """
    most, begun = max(seconds, LONGEST), time.monotonic()
    limit = min(patience(seconds), most)
    while not true():
        if (took := time.monotonic() - begun) >= limit:
            limit = min(seconds * _measured(slowness()), most)
            assert took < limit, f"not true within {limit:.0f} s"
        time.sleep(pause)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Assert that the context's body meets a deadline that the product itself has, such as that for stopping.

    Raises AssertionError if it takes longer than `patience(seconds)`. The speed of something that has no
    deadline belongs in a benchmark, not in a test.
    """
    begun = time.monotonic()
    yield
    took, limit = time.monotonic() - begun, patience(seconds)
    if took >= limit:
        limit = seconds * _measured(slowness())
    assert took < limit, f"took {took:.1f} s of {limit:.1f} s"


def _measured(least: float) -> float:
    """Measure how slow the machine is now, and return that for all later waits; at least ``least``."""
    found = max(least, min(_import_time() / REFERENCE, MOST))
    os.environ[_VARIABLE] = f"{found:.2f}"
    return found


def _import_time() -> float:
    """Seconds that a new interpreter needs to import a part of the standard library."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-I", "-c", "import asyncio, http.server, email.parser"], check=True)
    return time.monotonic() - begun
