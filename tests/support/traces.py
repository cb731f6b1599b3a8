"""Runs of 'trace', and work for it to see."""

import os

from tests.support.trace_process import TraceProcess

TRACING = b"Tracing kprobe mine. Ctrl-C to end.\n"

MOST = 23


def lines(trace: TraceProcess) -> list[bytes]:
    return [line for line in trace.output.splitlines() if b": mine: (" in line]


def work(times: int = MOST) -> None:
    for _ in range(times):
        os.getppid()
