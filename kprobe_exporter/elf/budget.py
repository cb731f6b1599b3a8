"""The budget of one file: the bytes that are read of it, the processor time for that, the memory for results.

An unprivileged user may have written the file. So each read and each step of a loop over its content is
charged, and the work ends when the budget is spent. Charging is a subtraction: the clock is read once in
``STEP`` bytes, because a million names are charged one by one.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

MOST_BYTES = 1 << 29
"""Bytes that are read of one file for one plan. A browser with all its symbols takes 200 MB."""

MOST_SECONDS = 5.0
"""Seconds of processor time. A million symbols take 1 s, a usual library 5 ms."""

MOST_AT_ONCE = 1 << 20
"""Bytes of one read."""

STEP = 1 << 16
"""Bytes between two looks at the clock."""


class Exhausted(Exception):
    """The budget is spent. Its text is a clause after the file's name."""

    def __str__(self) -> str:
        return (
            f"is damaged or no usual program: to find the function takes more than {MOST_SECONDS:g} s or "
            f"{MOST_BYTES >> 20} MiB of reading; write its offset instead"
        )


class FileBudget:
    """The budget of one file for all questions until the plan has been made. Not thread-safe.

    ``kept`` are the bytes of memory, roughly, that the results take until they are dropped. ``share`` divides
    the usual budget.
    """

    def __init__(self, share: int = 1) -> None:
        self.kept = 0
        self._bytes = MOST_BYTES // share
        self._seconds = MOST_SECONDS / share
        self._started = 0.0  # when the present question began, in this thread's processor time
        self._look_at = self._bytes  # the bytes that are left at the next look at the clock

    @contextmanager
    def question(self) -> Iterator[None]:
        """Charge the processor time of this thread until the end of the ``with`` block."""
        self._started = time.thread_time()
        try:
            yield
        finally:
            self._seconds -= time.thread_time() - self._started

    def spend(self, size: int) -> None:
        """Charge ``size`` bytes. Raises Exhausted, from the first time on at each call."""
        self._bytes -= size
        if self._bytes < self._look_at:
            self._look()

    @property
    def exhausted(self) -> bool:
        """Whether it is spent."""
        return self._bytes < 0

    def _look(self) -> None:
        if self._bytes < 0 or time.thread_time() - self._started > self._seconds:
            self._bytes = -1
            raise Exhausted
        self._look_at = max(0, self._bytes - STEP)


class MeteredFile:
    """A file, or a part of one, whose reading is charged. It has what pyelftools needs of a stream."""

    def __init__(self, stream: IO[bytes], budget: FileBudget) -> None:
        self._stream, self._budget = stream, budget
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes. Raises Exhausted, and ValueError for more than any part may have."""
        if not 0 <= size <= MOST_AT_ONCE:
            raise ValueError(size)
        data = self._stream.read(size)
        self._budget.spend(len(data))
        return data
