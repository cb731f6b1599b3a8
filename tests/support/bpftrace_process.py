"""Ends bpftrace, which then prints its maps."""

import signal
import subprocess
import time

AGAIN = 1.0
"""Seconds until it is interrupted once more."""


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
