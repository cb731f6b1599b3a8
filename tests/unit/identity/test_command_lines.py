"""identity.command_lines: a process that holds its memory map does not hold up the caller."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from kprobe_exporter.identity.command_lines import MAX_THREADS, MAX_WAIT_S, CommandLines


@pytest.fixture
def directory() -> Iterator[int]:
    opened = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


def test_own_command_line(directory: int) -> None:
    own = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")[:1024]
    lines = CommandLines()
    assert [(lines(directory) or b"")[:1024] for _ in range(3)] == [own] * 3


def test_ended_process(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    assert CommandLines()(directory) is None
    os.close(directory)


def test_hanging_process(directory: int) -> None:
    """Each costs a thread and little time; the lines of others come until too many hang."""
    hanging, end = [True], Event()

    def read(own: int) -> bytes:
        if hanging[0]:
            end.wait()
        return b"sh"

    lines = CommandLines(read)
    began = time.monotonic()
    assert lines(directory) is None
    hanging[0] = False
    lines._left = MAX_WAIT_S  # as after a second
    assert lines(directory) == b"sh"
    hanging[0] = True
    assert {lines(directory) for _ in range(2 * MAX_THREADS)} == {None}
    assert len(lines._threads) == MAX_THREADS
    assert time.monotonic() - began < 2
    end.set()
    for thread in lines._threads[:-1]:  # the last one waits for work
        thread.join()
    assert lines._last is not None
    lines._last.result()
    hanging[0] = False
    lines._left = MAX_WAIT_S
    assert lines(directory) == b"sh"
