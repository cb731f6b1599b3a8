"""A process on a CPU of its own that calls lseek(2), as often and with the return values that it is told.

lseek of a file in memory does next to nothing and returns what it was asked for, so one tracepoint
has any number of different values. Run as a program it is that process: a command a line on stdin, the number
of calls that it made on stdout.
"""

import os
import sys
import time
from collections.abc import Sequence

from tests.bench.own_cpu import OwnCpu

EVENT = "syscalls/sys_exit_lseek"
TICK = 0.001
CHUNK = 1000  # calls between two looks at the clock while behind


class Workload(OwnCpu):
    """The process."""

    def __init__(self, cpu: int) -> None:
        super().__init__(__name__, cpu)

    def burst(self, calls: int, values: int = 1) -> int:
        """As fast as it can, returning the numbers below ``values`` in turn."""
        self.start(0, 0, calls, values)
        return self.finish()

    def start(self, rate: int, seconds: float, calls: int = 0, values: int = 1) -> None:
        """``rate`` calls a second for so long; ``finish`` waits for the end."""
        self.tell(f"{rate} {seconds} {calls} {values}")

    def finish(self) -> int:
        return int(self.answer())


def _burst(calls: int, values: Sequence[int], file: int) -> int:
    seek = os.lseek
    for _ in range(calls // len(values)):
        for value in values:
            seek(file, value, 0)
    for value in values[: calls % len(values)]:
        seek(file, value, 0)
    return calls


def _pace(rate: int, seconds: float, values: Sequence[int], file: int) -> int:
    began, done = time.monotonic(), 0
    seek, count = os.lseek, len(values)
    while (now := time.monotonic() - began) < seconds:
        due = min(int(now * rate), done + CHUNK)
        while done < due:
            seek(file, values[done % count], 0)
            done += 1
        if done == int(now * rate):
            time.sleep(TICK)
    return done


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    file = os.memfd_create("bench")
    for line in sys.stdin:
        rate, seconds, calls, values = (float(word) for word in line.split())
        numbers = range(int(values))
        done = _burst(int(calls), numbers, file) if calls else _pace(int(rate), seconds, numbers, file)
        print(done, flush=True)


if __name__ == "__main__":
    main()
