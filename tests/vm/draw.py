"""Draws the files of tests that one run of `make test` takes: a week of runs takes all of them.

Runs differ by the hour and by the day at which they begin: by the day too, since a day is a multiple of most
shares. DRAW=NUMBER in the environment repeats a run's draw, and DRAW=all takes every file.
"""

import os
import time
from collections.abc import Iterable, Sequence

from tests.vm import ROOT

ALL = "all"


def draw() -> int | None:
    """The number of this run's draw; None takes all. Raises ValueError if DRAW is neither."""
    given = os.environ.get("DRAW")
    if not given:
        now = int(time.time())
        return now // 3600 + now // 86400
    return None if given == ALL else int(given)


def drawn(
    tests: Iterable[str],
    shares: int,
    run: int | None,
    *,
    always: Sequence[str] = (),
    left_out: Iterable[str] = (),
) -> list[str]:
    """The tests of this run: every `shares`-th file, and `always`, both in the order of `tests`.

    ``tests`` and ``always`` are directories, files and tests of files. What is in ``left_out`` is in no run.
    The order holds for ``always`` too: the last file of a suite may leave a kernel that only a reboot mends.
    """
    tests, left_out = _files(tests), frozenset(left_out)
    place = {file: number for number, file in enumerate(dict.fromkeys(map(_file, tests)))}
    kept = [test for test in _files(always) if not _among(test, left_out)]
    rest = [test for test in tests if not _among(test, left_out) and test not in kept]
    if run is not None:
        files = list(dict.fromkeys(map(_file, rest)))
        chosen = set(files[run % shares :: shares])
        rest = [test for test in rest if _file(test) in chosen]
    return sorted(_once([*rest, *kept]), key=lambda test: place.get(_file(test), len(place)))


def _once(tests: Sequence[str]) -> list[str]:
    """Without the tests of a file that is there as a whole, which pytest would run twice."""
    return [test for test in tests if test == _file(test) or _file(test) not in tests]


def _files(tests: Iterable[str]) -> list[str]:
    """The tests, with each directory as its files."""
    found: list[str] = []
    for test in tests:
        place = ROOT / test
        if place.is_dir():
            found += sorted(str(file.relative_to(ROOT)) for file in place.rglob("test_*.py"))
        else:
            found.append(test)
    return list(dict.fromkeys(found))


def _file(test: str) -> str:
    return test.partition("::")[0]


def _among(test: str, left_out: frozenset[str]) -> bool:
    """Whether this test, its file or a directory of it is left out."""
    file = _file(test)
    parents = (file[:end] for end, letter in enumerate(file) if letter == "/")
    return test in left_out or file in left_out or any(parent in left_out for parent in parents)
