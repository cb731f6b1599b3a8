"""A process on a CPU of its own that calls getppid(2) in bursts, and says what a call took.

Run as a program it is that process: the calls of a burst on stdin, nanoseconds a call on stdout.
"""

import os
import sys
import time
from collections import deque
from itertools import repeat, starmap

from tests.bench.own_cpu import OwnCpu


class Bursts(OwnCpu):
    """The process. ``made`` are the calls of all its bursts."""

    def __init__(self, cpu: int) -> None:
        super().__init__(__name__, cpu)
        self.made = 0

    def burst(self, calls: int) -> float:
        """Nanoseconds a call, the loop's own included."""
        self.tell(calls)
        self.made += calls
        return float(self.answer())


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
