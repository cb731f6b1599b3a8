"""trace.output: bytes unchanged, none that controls a terminal, and an end at any time."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import StartError
from kprobe_exporter.trace import output as module
from kprobe_exporter.trace.output import ENDING, PIECE, Gone, Interrupt, Output, escaped
from tests.support.patience import patience


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    try:
        yield read, write
    finally:
        for descriptor in (read, write):
            try:
                os.close(descriptor)
            except OSError:
                assert descriptor == read  # closed by the test


@given(st.text())
def test_what_is_escaped_cannot_write_to_a_terminal(text: str) -> None:
    shown = escaped(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    if text.isprintable() and text.isascii():  # others may be letters that show nothing
        assert shown == text


@given(st.lists(st.binary(max_size=9)))
def test_a_file_gets_the_bytes_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("out") / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    out = Output(descriptor, Interrupt(), terminal=False)
    for part in parts:
        out.write(part)
    os.close(descriptor)
    assert path.read_bytes() == b"".join(parts)


def test_a_character_that_comes_in_two_parts(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    out = Output(descriptor, Interrupt(), terminal=True)
    for part in ("é\n".encode()[:1], "é\n".encode()[1:], b"\xff\x1b[2J\n"):
        out.write(part)
    os.close(descriptor)
    assert (tmp_path / "out").read_text() == "é\n\\xff\\x1b[2J\n"


def test_a_reader_that_has_gone() -> None:
    with pipe() as (read, write):
        stop = Interrupt()
        out = Output(write, stop, terminal=False)
        os.close(read)
        stop.wait_for([], patience(10), out.watched)
        assert stop.is_set()
        with pytest.raises(Gone):
            out.write(b"x")
        assert out.gone


def test_a_reader_that_does_not_read_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    with pipe() as (_, write):
        stop = Interrupt()
        stop.set()
        with pytest.raises(Gone):
            Output(write, stop, terminal=False).write(bytes(1 << 20))


def test_a_full_disk_is_told() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(StartError, match=r"stdout cannot be written: No space left on device\."):
        Output(descriptor, Interrupt(), terminal=False).write(b"x")
    os.close(descriptor)


def test_what_is_written_to_a_pipe_goes_in_pieces() -> None:
    with pipe() as (read, write):
        Output(write, Interrupt(), terminal=False).write(bytes(PIECE + 1))
        assert len(os.read(read, 1 << 20)) == PIECE + 1


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_the_wait(number: signal.Signals) -> None:
    found = signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP is ignored
    try:
        with Interrupt().heeded() as stop:
            os.kill(os.getpid(), number)
            stop.wait_for([], patience(10))
            assert (stop.is_set(), stop.gives_up) == (True, False)
            os.kill(os.getpid(), number)
            assert (stop.is_set(), stop.gives_up) == (True, True)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, found)


def test_nohup(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt().heeded() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_ends_a_write_to_a_terminal() -> None:
    """A terminal that Ctrl-S has stopped accepts no more bytes, so the write would block forever."""
    with Interrupt().heeded() as stop, pytest.raises(InterruptedError), stop.in_write():
        os.kill(os.getpid(), signal.SIGINT)
