"""Shell patterns over names: matching, suggestions if nothing matches, and the names of the probes."""

import fnmatch
import hashlib
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable

LONGEST_NAME = 40
"""Characters of a probe's name, at most."""

MOST_COMPARED = 64
"""Characters at the beginning of a pattern that suggestions are searched with."""


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches names like the shell, case-sensitively (fnmatch.fnmatchcase)."""
    whole = re.compile(fnmatch.translate(pattern))
    return lambda name: whole.match(name) is not None


def begin_alike(pattern: str, names: list[str]) -> str:
    """Return a clause with the sorted names that share the longest beginning with the pattern."""
    head = re.split(r"[*?\[]", pattern[:MOST_COMPARED], maxsplit=1)[0]
    for length in range(len(head), 0, -1):
        start = head[:length]
        near = names[bisect_left(names, start) : bisect_left(names, f"{start}\U0010ffff")]
        if near:
            begin = f"{len(near)} begin" if len(near) > 1 else "one begins"
            return f"; {begin} with '{start}': {near[0]}{', …' if len(near) > 1 else ''}"
    return ""


def probe_name(base: str, function: str, taken: set[str]) -> str:
    """Return the name of a probe that the pattern of ``base`` made, and add it to ``taken``.

    It has at most 40 characters of ``[a-z0-9_]``. A name that is too long or taken ends in a hash of the
    full name, so that it is the same at each start.
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
