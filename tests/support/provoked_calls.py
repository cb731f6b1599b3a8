"""System calls in a known number."""

import os

import pytest

TIMES = 23


def getppid(times: int = TIMES) -> None:
    for _ in range(times):
        os.getppid()


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
