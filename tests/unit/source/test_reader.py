"""The reader's thread on a plain pipe: it delivers what was written, and it always ends."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress

import pytest

from kprobe_exporter.errors import SourceError
from kprobe_exporter.model.records import Batch
from kprobe_exporter.source import lines
from kprobe_exporter.source.lines import LineParser, TextPipe
from kprobe_exporter.source.reader import Reader
from tests.support.patience import patience

SOON = patience(10)
"""Seconds until a test gives up. A test that passes never waits so long."""


class Lines(LineParser):
    """A parser that makes a record from each line."""

    def feed(self, data: bytes) -> Batch:
        *found, self._rest = (self._rest + data).split(b"\n")
        return Batch([(line,) for line in found])


class Source:
    """A source on a pipe of the test, and the records that it delivered."""

    def __init__(self) -> None:
        pipe, self.end = os.pipe()
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self.records: list[bytes] = []
        self.errors: list[BaseException] = []
        self.failed = threading.Event()
        self.text = TextPipe(pipe, Lines(), self.deliver)
        self.source = Reader(self.text, self.on_error)

    def deliver(self, batch: Batch) -> None:
        self.records += [line for (line,) in batch.records]

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)
        self.failed.set()

    def write(self, data: bytes) -> None:
        os.write(self.end, data)

    def delivered(self, data: bytes) -> list[bytes]:
        """Write this, wait until it is delivered, and return all records."""
        self.write(data)
        assert self.source.drain(SOON)
        return self.records

    def hang_up(self) -> None:
        if self.end >= 0:
            os.close(self.end)
            self.end = -1

    @property
    def running(self) -> bool:
        return any(thread.name == "kprobe-reader" for thread in threading.enumerate())


@pytest.fixture
def reader() -> Iterator[Source]:
    made = Source()
    yield made
    made.source.close()
    made.hang_up()
    assert not made.running


def test_what_is_called_is_done_between_two_rounds(reader: Source) -> None:
    """The reader's thread makes the call. Data written before is delivered before it or soon after."""
    reader.source.start()
    assert reader.source.call(lambda: threading.current_thread().name) == "kprobe-reader"
    with pytest.raises(ZeroDivisionError):
        reader.source.call(lambda: 1 // 0)
    assert reader.delivered(b"half a li") == []
    reader.source.call(lambda: reader.text.adopt(Lines()))
    assert reader.delivered(b"ne\n") == [b"half a line"]
    reader.source.close()
    with pytest.raises(SourceError, match="no events are read any more"):
        reader.source.call(lambda: None)


def test_who_waits_for_a_reader_that_fails_is_told(reader: Source) -> None:
    class Broken(Lines):
        def feed(self, data: bytes) -> Batch:
            raise OSError(5, "broken")

    reader.text.adopt(Broken())
    reader.write(b"x\n")
    waiting: Future[None] = Future()
    reader.source._calls.append((lambda: None, waiting))
    reader.source.start()
    with pytest.raises(SourceError):
        waiting.result(SOON)


def test_drain_waits_until_all_is_delivered(reader: Source) -> None:
    reader.source.start()
    for number in range(5):
        assert reader.delivered(b"%d\n" % number) == [b"%d" % n for n in range(number + 1)]


def test_unfinished_lines_wait_for_their_end(reader: Source) -> None:
    reader.source.start()
    assert reader.delivered(b"one\ntw") == [b"one"]
    assert reader.delivered(b"o\n") == [b"one", b"two"]


def test_close_delivers_what_is_there(reader: Source) -> None:
    reader.write(b"last\n")
    reader.source.start()
    reader.write(b"words\n")
    reader.source.close()
    assert reader.records == [b"last", b"words"]
    assert reader.errors == []


def test_end_of_file_is_no_end(reader: Source) -> None:
    """trace_pipe returns an end of file while tracing_on is 0."""
    reader.source.start()
    reader.write(b"x\n")
    reader.hang_up()
    for _ in range(3):
        assert reader.source.drain(SOON)
    assert reader.running
    assert (reader.records, reader.errors) == ([b"x"], [])


def test_it_goes_on_after_an_end_of_file(reader: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"a\n", b"", b"b\n", b""]

    def read(fd: int, _: int) -> bytes:
        assert fd == reader.pipe
        return answers.pop(0) if answers else b""

    monkeypatch.setattr(os, "read", read)
    reader.source.start()
    while answers:
        assert reader.source.drain(SOON)
    assert reader.records == [b"a", b"b"]


def test_close_twice_and_from_many_threads(reader: Source) -> None:
    reader.source.start()
    closers = [threading.Thread(target=reader.source.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(SOON)
    assert not reader.running
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader.pipe)
    reader.source.close()


def test_close_before_start_closes_the_pipe(reader: Source) -> None:
    reader.source.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader.pipe)


def test_drain_waits_for_what_came_after_the_reader_had_looked(
    reader: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the current round does not cover it, so drain() has to request another round."""
    looked, asked, again = threading.Event(), threading.Event(), threading.Event()
    read, nudge, deliver = os.read, os.eventfd_write, reader.deliver

    def held_read(fd: int, size: int) -> bytes:
        try:
            return read(fd, size)
        except BlockingIOError:
            looked.set()
            assert asked.wait(SOON)
            raise

    def noted_nudge(fd: int, value: int) -> None:
        nudge(fd, value)
        (again if asked.is_set() else asked).set()

    def held_deliver(batch: Batch) -> None:
        assert again.wait(SOON)
        deliver(batch)

    monkeypatch.setattr(os, "read", held_read)
    monkeypatch.setattr(os, "eventfd_write", noted_nudge)
    reader.text._deliver = held_deliver
    reader.source.start()
    assert looked.wait(SOON)
    delivered = reader.delivered(b"late\n")[:]
    again.set()
    assert delivered == [b"late"]


def test_drain_gives_up(reader: Source) -> None:
    """No thread runs yet: the timeout of 0 s ends the wait at once."""
    assert not reader.source.drain(0)


def test_drain_after_close_touches_no_file(reader: Source) -> None:
    """The number of the eventfd may belong to another file by then."""
    reader.source.start()
    reader.source.close()
    reused = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    written: list[int] = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "eventfd_write", lambda fd, _: written.append(fd))
            assert not reader.source.drain(0)
    finally:
        for fd in reused:
            os.close(fd)
    assert set(written) <= {-1}


@pytest.mark.parametrize("where", ["_parser", "_deliver"])
def test_an_error_of_the_thread_is_handed_on_once(reader: Source, where: str) -> None:
    class Fails:
        def feed(self, data: bytes) -> Batch:
            raise ValueError("a bug")

        def take(self) -> Batch:
            return Batch()

    setattr(reader.text, where, Fails() if where == "_parser" else Fails().feed)
    reader.source.start()
    reader.write(b"x\n")
    assert reader.failed.wait(SOON)
    assert not reader.source.drain(SOON)
    reader.source.close()
    assert [str(error) for error in reader.errors] == ["a bug"]


def test_a_pipe_that_cannot_be_read_any_more_is_a_source_error(
    reader: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "read", read)
    reader.source.start()
    assert reader.failed.wait(SOON)
    (error,) = reader.errors
    assert isinstance(error, SourceError)
    assert str(error) == "trace_pipe cannot be read any more: Input/output error."


def test_a_flood_does_not_hold_up_close(reader: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe is never empty, so the reader has to stop by itself."""
    monkeypatch.setattr(lines, "MOST_BATCHES", 5)
    stop, flooding = threading.Event(), threading.Event()
    os.set_blocking(reader.end, False)

    def flood() -> None:
        while not stop.is_set():
            with suppress(OSError):
                os.write(reader.end, b"x\n" * 2000)
            flooding.set()

    writer = threading.Thread(target=flood)
    writer.start()
    monkeypatch.setattr(os, "read", _always(os.read))
    try:
        assert flooding.wait(SOON)
        reader.source.start()
        closer = threading.Thread(target=reader.source.close)
        closer.start()
        closer.join(SOON)
        assert not closer.is_alive()
    finally:
        monkeypatch.undo()
        stop.set()
        writer.join()
    assert reader.errors == []


def _always(read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    """Return a read that always finds data."""

    def always(fd: int, size: int) -> bytes:
        try:
            return read(fd, size)
        except BlockingIOError:
            return b"x\n"

    return always


def test_events_that_come_meanwhile_are_delivered_unasked(reader: Source) -> None:
    arrived = threading.Event()
    deliver = reader.deliver

    def notice(batch: Batch) -> None:
        deliver(batch)
        arrived.set()

    reader.text._deliver = notice
    reader.source.start()
    assert reader.source.drain(SOON)
    reader.write(b"unasked\n")
    assert arrived.wait(SOON)
    assert reader.records == [b"unasked"]
