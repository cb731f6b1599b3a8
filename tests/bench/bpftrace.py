"""bpftrace beside us: one program while a context lasts, and whether it counted every call."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 60
COUNTED = re.compile(r"[:\])][ \t]+(\d+)")
"""A counter, or a row of a histogram, as bpftrace prints them."""


class Missed(Exception):
    """A probe did not see every call, so what it costs was not measured."""


@contextmanager
def bpftrace(program: str, live: Callable[[], bool], calls: int) -> Iterator[None]:
    """bpftrace with this program, from when its probe is ``live``. Raises Missed if it counts fewer calls."""
    with subprocess.Popen(
        ["bpftrace", "-e", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            limit = time.monotonic() + PATIENCE
            while not live():
                if process.poll() is not None or time.monotonic() > limit:
                    raise Missed(f"bpftrace does not attach: {program}")
                time.sleep(0.05)
            time.sleep(0.2)  # its program comes to the probe right after
            yield
        finally:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=PATIENCE)
    saw_all(counted(output), calls)


def counted(output: str) -> int:
    """All that the maps count that bpftrace prints at its end."""
    return sum(map(int, COUNTED.findall(output)))


def saw_all(seen: int, calls: int) -> None:
    """Raises Missed if fewer were seen than made."""
    if seen < calls:
        raise Missed(f"of {calls} calls {seen} were seen")
