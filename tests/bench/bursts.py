"""A process on a CPU of its own that calls getppid(2) in bursts, and says what a call took.

Run as a program it is that process: the calls of a burst on stdin, nanoseconds a call on stdout.
"""

import os
import subprocess
import sys
import time
from collections import deque
from itertools import repeat, starmap
from types import TracebackType


class Bursts:
    """The process, until the context is left. ``made`` are the calls of all its bursts."""

    def __init__(self, cpu: int) -> None:
        command = [sys.executable, "-m", __name__, str(cpu)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.made = 0

    def burst(self, calls: int) -> float:
        """Nanoseconds a call, the loop's own included."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(calls, file=self._process.stdin, flush=True)
        self.made += calls
        return float(self._process.stdout.readline())

    def __enter__(self) -> "Bursts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process as process:
            process.terminate()


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    for line in sys.stdin:
        count = int(line)
        calls = starmap(os.getppid, repeat((), count))  # the loop is C, and costs little beside the call
        began = time.perf_counter_ns()
        deque(calls, maxlen=0)
        print((time.perf_counter_ns() - began) / count, flush=True)


if __name__ == "__main__":
    main()
