"""util.progress: progress is one line on a terminal, and nothing elsewhere."""

import io
from contextlib import redirect_stderr

import pytest

from kprobe_exporter.util.progress import progress
from tests.support.stderr_terminal import CLEARED, sees, terminal


def test_it_is_one_line_that_goes_at_the_end() -> None:
    with terminal() as master:
        with progress() as tell:
            tell("1 of 3 s")
            tell("2 of 3 s")
            assert sees(master, b"\r1 of 3 s\x1b[K\r2 of 3 s\x1b[K")
        assert sees(master, CLEARED)


def fails() -> None:
    with progress() as tell:
        tell("1 of 3 s")
        raise OSError("gone")


def test_it_goes_when_something_fails() -> None:
    with terminal() as master:
        with pytest.raises(OSError, match="gone"):
            fails()
        assert sees(master, b"\r1 of 3 s\x1b[K" + CLEARED)


def test_no_hint_without_a_terminal() -> None:
    with redirect_stderr(io.StringIO()) as stderr, progress() as tell:
        tell("1 of 3 s")
    assert stderr.getvalue() == ""
