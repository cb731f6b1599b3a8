"""Patterns over names: what matches, what was meant by one that names nothing, how the probes are called."""

import fnmatch
import hashlib
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable

LONGEST_NAME = 40
"""Characters of a probe's name."""

MOST_COMPARED = 64
"""Characters of a pattern's beginning that are looked for."""


def matcher(pattern: str) -> Callable[[str], bool]:
    """As the shell matches names, case and all (fnmatch.fnmatchcase)."""
    whole = re.compile(fnmatch.translate(pattern))
    return lambda name: whole.match(name) is not None


def begin_alike(pattern: str, names: list[str]) -> str:
    """Which of the sorted names begin with most of what the pattern begins with, as a clause."""
    head = re.split(r"[*?\[]", pattern[:MOST_COMPARED], maxsplit=1)[0]
    for length in range(len(head), 0, -1):
        start = head[:length]
        near = names[bisect_left(names, start) : bisect_left(names, f"{start}\U0010ffff")]
        if near:
            begin = f"{len(near)} begin" if len(near) > 1 else "one begins"
            return f"; {begin} with '{start}': {near[0]}{', …' if len(near) > 1 else ''}"
    return ""


def probe_name(base: str, function: str, taken: set[str]) -> str:
    """The name of a probe that a pattern of the probe ``base`` made; ``taken`` is kept up to date.

    At most 40 of ``[a-z0-9_]``. A name that had to be cut, or is taken, ends in a hash of what it stands
    for, so that it is the same at each start.
    """
    whole = f"{base}_{function}"
    name = clean = re.sub(r"[^a-z0-9_]", "_", whole.lower())
    for number in itertools.count():
        if len(name) <= LONGEST_NAME and name not in taken:
            break
        digest = hashlib.sha256(f"{whole}/{number}".encode()).hexdigest()[:7]
        name = f"{clean[: LONGEST_NAME - 8]}_{digest}"
    taken.add(name)
    return name
