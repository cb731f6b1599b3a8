"""Ends bpftrace, which then prints its maps."""

import signal
import subprocess
import time

AGAIN = 1.0
"""Seconds until it gets the signal once more."""


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Interrupt bpftrace until it ends; kill it and raise TimeoutExpired after so many seconds.

    It heeds SIGINT only while it waits for events (bpftrace 0.17: BPFtrace::poll_perf_events), so that one
    signal may have no effect.
    """
    limit = time.monotonic() + seconds
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(AGAIN)
        except subprocess.TimeoutExpired:
            if time.monotonic() > limit:
                process.kill()
                raise
