"""A terminal in place of stderr, and what is written to it."""

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

CLEARED = b"\r\x1b[K"


@contextmanager
def terminal() -> Iterator[int]:
    """Make stderr a terminal, and yield the descriptor from which its output is read."""
    master, slave = os.openpty()
    with open(slave, "w") as stderr, redirect_stderr(stderr):
        yield master
    os.close(master)


def sees(terminal: int, expected: bytes) -> bool:
    """Return True if these bytes come next on the terminal, where they may arrive late and in parts."""
    seen = b""
    while len(seen) < len(expected) and select.select([terminal], [], [], 10)[0]:
        seen += os.read(terminal, len(expected) - len(seen))
    assert seen == expected
    return True
