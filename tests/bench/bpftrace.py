"""bpftrace beside us: one program while a context lasts, and whether it counted every call."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

from tests.bench.checks import Missed, saw_all
from tests.support.bpftrace_process import end

PATIENCE = 60
COUNTED = re.compile(r"[:\])][ \t]+(\d+)")
"""A counter, or a row of a histogram, as bpftrace prints them."""

LIVE = "live"
SAYS_SO = f'interval:ms:100 {{ if (@live == 0) {{ printf("{LIVE}\\n"); @live = 1; }} }}'
"""To be added to a program: only what comes in time is sure to be after all was attached."""


@contextmanager
def bpftrace(program: str, live: Callable[[str], bool], calls: int) -> Iterator[None]:
    """bpftrace with this program, from when its probe is ``live``, told from what it printed so far.

    Raises Missed if it counts fewer calls.
    """
    with TemporaryFile("w+") as output:

        def printed() -> str:
            output.seek(0)
            return output.read()

        command = ["bpftrace", "-e", program]
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                limit = time.monotonic() + PATIENCE
                while not live(printed()):
                    if process.poll() is not None or time.monotonic() > limit:
                        raise Missed(f"bpftrace does not attach: {program}: {printed()}")
                    time.sleep(0.05)
                time.sleep(0.2)  # its program comes to the probe right after
                yield
            finally:
                end(process, PATIENCE)
        saw_all(counted(printed()), calls)


def counted(output: str) -> int:
    """All that the maps count that bpftrace prints at its end."""
    return sum(map(int, COUNTED.findall(output)))
