"""trace.text: the progress of a trace is shown on a terminal, and nowhere else."""

import io
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import cast

import pytest

from kprobe_exporter.trace import text as module
from kprobe_exporter.trace.interrupt import Interrupt
from kprobe_exporter.trace.output import Output
from kprobe_exporter.trace.text import _Text, progress
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.profile import parse_stats

CLEARED = b"\r\x1b[K"


@contextmanager
def terminal() -> Iterator[int]:
    """Make stderr a terminal, and yield the descriptor from which its output is read."""
    master, slave = os.openpty()
    with open(slave, "w") as stderr, redirect_stderr(stderr):
        yield master
    os.close(master)


def sees(terminal: int, expected: bytes) -> bool:
    """Return True if these bytes come next on the terminal, where they may arrive late and in parts."""
    seen = b""
    while len(seen) < len(expected) and select.select([terminal], [], [], 10)[0]:
        seen += os.read(terminal, len(expected) - len(seen))
    assert seen == expected
    return True


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def test_it_is_one_line_that_goes_at_the_end() -> None:
    with terminal() as master:
        with progress() as tell:
            tell("1 of 3 s")
            tell("2 of 3 s")
            assert sees(master, b"\r1 of 3 s\x1b[K\r2 of 3 s\x1b[K")
        assert sees(master, CLEARED)


def test_it_goes_when_something_fails() -> None:
    with terminal() as master:
        with pytest.raises(OSError, match="gone"), progress():
            raise OSError("gone")
        assert sees(master, CLEARED)


def test_no_hint_without_a_terminal() -> None:
    with redirect_stderr(io.StringIO()) as stderr, progress() as tell:
        tell("1 of 3 s")
    assert stderr.getvalue() == ""


def traced(pipe: tuple[int, int], out: int, stop: Interrupt, monkeypatch: pytest.MonkeyPatch) -> _Text:
    """Return a trace whose kernel buffer has 1,234 events, and whose pipe has two lines of text."""
    instance = Instance(cast("Tracefs", None), "trace", None)
    stats = parse_stats("entries: 1234\n")
    monkeypatch.setattr(module, "buffer_stats", lambda files, path: stats)
    os.write(pipe[1], b"one\ntwo\n")
    return _Text(instance, pipe[0], Output(out, stop, terminal=False), stop)


def test_what_is_held_in_the_kernel_and_then_written(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -d, stderr shows the seconds and the events, then the lines written; stdout has only the lines."""
    read, write = os.pipe()
    stop = Interrupt()
    text = traced(pipe, write, stop, monkeypatch)
    with terminal() as master:
        text.wait(1000, stop.set)  # stop is set at the first check
        assert sees(master, b"\r0 of 1000 s, 1,234 events\x1b[K" + CLEARED)
        text.rest(header=False, held=True)
        assert sees(master, b"\r2 lines written\x1b[K" + CLEARED)
    assert os.read(read, 100) == b"one\ntwo\n"
    os.close(read)
    os.close(write)
