"""Ends bpftrace, which then prints its maps."""

import re
import signal
import subprocess
import time
from collections import Counter

AGAIN = 1.0
"""Seconds until it is interrupted once more."""

_ROW = re.compile(r"^\[(\d+)([KMG]?)[],].*?(\d+) \|", re.MULTILINE)


def histogram(text: str) -> Counter[int]:
    """Return the counts of a `hist()` that bpftrace printed, by their buckets' lower bounds."""
    rows = _ROW.findall(text)
    return Counter({int(low) << 10 * " KMG".index(unit or " "): int(count) for low, unit, count in rows})


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Interrupt bpftrace, and wait until it ends; kill it and raise TimeoutExpired after so many seconds.

    It heeds SIGINT only if a system call that waits for events is interrupted afterwards (bpftrace 0.17:
    BPFtrace::poll_perf_events), and a second SIGINT kills it while it prints. So it is stopped and continued,
    which interrupts epoll_wait(2) as well, until it has ended.
    """
    limit = time.monotonic() + seconds
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        try:
            process.wait(AGAIN)
        except subprocess.TimeoutExpired:
            if time.monotonic() > limit:
                process.kill()
                raise
            process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGCONT)
