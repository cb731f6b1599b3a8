"""How much of a file is read, and for how long, before it counts as crafted or damaged."""

import time
from typing import IO

MOST_BYTES = 1 << 29
"""Bytes that are read of one file to answer one question. A browser with all its symbols takes 200 MB."""

MOST_SECONDS = 5.0
"""Seconds of this thread's processor time. A million symbols take 2 s, a usual library 10 ms."""

MOST_AT_ONCE = 1 << 20


class Exhausted(Exception):
    """The budget is spent. The message is a clause after the file's name."""


class ReadingBudget:
    """The bytes and the time that are left for one question about one file."""

    def __init__(self) -> None:
        self._bytes, self._until = MOST_BYTES, time.thread_time() + MOST_SECONDS

    def spend(self, size: int) -> None:
        """Take ``size`` bytes of it. Raises Exhausted."""
        self._bytes -= size
        if self._bytes < 0 or time.thread_time() > self._until:
            raise Exhausted(
                f"is damaged or no usual program: to find the function takes more than {MOST_SECONDS:g} s or "
                f"{MOST_BYTES >> 20} MiB of reading; write its offset instead"
            )


class Metered:
    """A file whose reads are taken from a budget. It has what pyelftools needs of a stream."""

    def __init__(self, stream: IO[bytes], budget: ReadingBudget) -> None:
        self._stream, self._budget = stream, budget
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes. Raises Exhausted, and ValueError for more than any part may have."""
        if not 0 <= size <= MOST_AT_ONCE:
            raise ValueError(size)
        self._budget.spend(size)
        return self._stream.read(size)
