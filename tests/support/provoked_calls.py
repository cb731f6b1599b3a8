"""System calls in a known number."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

TIMES = 23


def getppid(times: int = TIMES) -> None:
    for _ in range(times):
        os.getppid()


@contextmanager
def flood(call: Callable[[], object] = os.getppid) -> Iterator[None]:
    """Run a child that makes this call as often as it can."""
    pid = os.fork()
    if pid == 0:
        while True:
            call()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def opens_of_a_missing_file(times: int = TIMES) -> None:
    for _ in range(times):
        with pytest.raises(FileNotFoundError):
            os.open("/nonexistent", os.O_RDONLY)


def fsyncs_of_a_pipe(times: int = TIMES) -> None:
    read, write = os.pipe()
    for _ in range(times):
        with pytest.raises(OSError, match="Invalid argument"):
            os.fsync(write)
    os.close(read)
    os.close(write)
