"""How long a test waits: seconds of an idle machine, stretched by how slow this one is.

An emulated CPU, a busy machine and a fast one differ by a factor of thirty. A test names the seconds that
an idle machine may take; `patience` stretches them, so that no time-out is chosen for the slowest machine.
A time-out only bounds how long a failure takes: nothing here loosens an assertion.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REFERENCE = 0.15
"""Seconds: what `_import_time` gives on an idle core of 2.5 GHz."""

MOST = 10.0
"""The factor's bound: a machine that is slower yet is reported by its tests."""

_VARIABLE = "KPROBE_EXPORTER_TEST_SLOWNESS"


def slowness() -> float:
    """How many times longer than on the reference machine an import takes here; 1 to MOST.

    It is measured once: child processes inherit it by the environment.
    """
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = f"{min(max(_import_time() / REFERENCE, 1.0), MOST):.2f}"
    return float(os.environ[_VARIABLE])


def patience(seconds: float) -> float:
    """The seconds that a test waits here for what takes an idle machine at most `seconds`."""
    return seconds * slowness()


def eventually(true: Callable[[], object], seconds: float = 20) -> None:
    """Wait for what another process or the kernel is about to do.

    Raises AssertionError if it is not so within `patience(seconds)`.
    """
    limit = patience(seconds)
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, f"not true within {limit:.0f} s"
        time.sleep(0.02)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Hold what is done in the context to a deadline that it has itself, such as that of an end.

    Raises AssertionError if it takes longer than `patience(seconds)`. How fast something is when it has
    no deadline is no matter of a test: that is a row of a benchmark.
    """
    begun = time.monotonic()
    yield
    took, limit = time.monotonic() - begun, patience(seconds)
    assert took < limit, f"took {took:.1f} s of {limit:.1f} s"


def _import_time() -> float:
    """Seconds that a new interpreter takes to import a part of the standard library."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-I", "-c", "import asyncio, http.server, email.parser"], check=True)
    return time.monotonic() - begun
