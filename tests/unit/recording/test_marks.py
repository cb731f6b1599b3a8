"""Marks of programs: what is drawn, for which thread, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.export.perfetto import Thread
from kprobe_exporter.grammar.event_format import parse_format
from kprobe_exporter.model.records import Record
from kprobe_exporter.plan.shape import shape
from kprobe_exporter.recording import marks
from kprobe_exporter.recording.marks import MAX_DEPTH, MAX_NAME, Marks, marks_layout
from tests.support.kernel_formats import RELEASES, saved


class Drawn:
    """A timeline that notes what is drawn."""

    def __init__(self) -> None:
        self.slices: list[tuple[int, str, int, int | None]] = []
        self.counters: list[tuple[int | None, str, int, int]] = []

    def mark(self, thread: Thread, name: str, start: int, duration: int | None) -> None:
        self.slices.append((thread.id, name, start, duration))

    def counter(self, thread: Thread, name: str, time: int, value: int) -> None:
        self.counters.append((thread.process, name, time, value))


class Program:
    """Writes marks as a thread of a process."""

    def __init__(self) -> None:
        self.drawn = Drawn()
        self.marks = Marks(self.drawn)

    def write(self, time: int, text: bytes | str, tid: int = 7, tgid: int | None = 5) -> None:
        written = text.encode() if isinstance(text, str) else text
        record: Record = (1, time, 0, tid, tgid, None, written + b"\n", b"worker")
        self.marks.add(record)


def test_slices_nest_in_their_thread() -> None:
    program = Program()
    program.write(10, "B|5|outer")
    program.write(11, "B|5|other", tid=8)
    program.write(12, "B|5|inner|with|bars")
    program.write(15, "E|5")
    program.write(16, "E", tid=8)
    program.write(20, "E|")
    assert program.drawn.slices == [
        (7, "inner|with|bars", 12, 3),
        (8, "other", 11, 5),
        (7, "outer", 10, 10),
    ]


def test_counter_values() -> None:
    program = Program()
    program.write(10, "C|5|queue|12")
    program.write(11, "C|5|queue|-3|category")
    program.write(12, "C|5|queue|many")
    assert program.drawn.counters == [(5, "queue", 10, 12), (5, "queue", 11, -3)]


@pytest.mark.parametrize("text", ["B|6|request", "E|6", "C|6|queue|1"])
def test_mark_of_another_process_is_refused(text: str) -> None:
    program = Program()
    program.write(10, "B|5|own")
    program.write(11, text)
    program.write(12, "E|5")
    assert program.marks.refused == 1
    assert (program.drawn.slices, program.drawn.counters) == ([(7, "own", 10, 2)], [])


def test_mark_of_an_unknown_process_is_its_threads() -> None:
    """The id in the text decides nothing."""
    program = Program()
    program.write(10, "B|99|request", tgid=None)
    program.write(12, "E|99", tgid=None)
    assert program.drawn.slices == [(7, "request", 10, 2)]
    assert program.marks.refused == 0


def test_end_of_a_slice_of_another_process_with_the_same_thread_id() -> None:
    program = Program()
    program.write(10, "B|5|request")
    program.write(12, "E", tgid=6)
    program.write(13, "B|6|later", tgid=6)
    program.write(14, "E", tgid=6)
    assert program.drawn.slices == [(7, "later", 13, 1)]


def test_end_without_a_beginning_and_beginning_without_an_end() -> None:
    program = Program()
    program.write(10, "E|5")
    program.write(11, "B|5|request")
    program.marks.finish()
    assert program.drawn.slices == [(7, "request", 11, None)]


def test_slice_across_a_loss_is_not_drawn() -> None:
    program = Program()
    program.write(10, "B|5|outer")
    program.write(11, "B|5|open")
    program.marks.lose(20)
    program.write(21, "B|5|later")
    program.write(22, "E|5")
    program.write(23, "E|5")
    program.marks.finish()
    assert program.drawn.slices == [(7, "later", 21, 1)]


@pytest.mark.parametrize("text", [b"", b"hello", b"B|", b"B|x|name", b"b|5|name", b"I|5|name", b"\xff|5|a"])
def test_other_text_is_ignored(text: bytes) -> None:
    program = Program()
    program.write(10, text)
    program.marks.finish()
    assert (program.drawn.slices, program.marks.refused) == ([], 0)


def test_hostile_names_are_short_and_printable() -> None:
    program = Program()
    for time, name in enumerate((b"\x1b[2J", b"\xff", "\u202e".encode(), b"a" * 5000, b"")):
        program.write(time, b"B|5|" + name)
        program.write(time, "E")
    names = [name for _, name, _, _ in program.drawn.slices]
    assert names == ["\\x1b[2J", "\\xff", "\\u202e", "a" * MAX_NAME, "mark"]


def test_depth_is_bounded_and_ends_still_match() -> None:
    program = Program()
    for depth in range(MAX_DEPTH + 50):
        program.write(depth, f"B|5|{depth}")
    for depth in range(MAX_DEPTH + 50):
        program.write(1000 + depth, "E")
    assert len(program.drawn.slices) == MAX_DEPTH
    assert program.drawn.slices[-1] == (7, "0", 0, 1000 + MAX_DEPTH + 49)


def test_threads_and_counters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MAX_THREADS", 2)
    monkeypatch.setattr(marks, "MAX_COUNTERS", 2)
    program = Program()
    for tid in (1, 2, 3):
        program.write(tid, "B|5|request", tid=tid)
        program.write(tid, f"C|5|queue {tid}|1")
    program.marks.finish()
    assert [tid for tid, *_ in program.drawn.slices] == [2, 3]
    assert [name for _, name, _, _ in program.drawn.counters] == ["queue 1", "queue 2"]


@given(st.binary(max_size=60), st.lists(st.sampled_from("BEC|5\n-"), max_size=12).map("".join))
def test_any_text_is_taken(data: bytes, text: str) -> None:
    program = Program()
    program.write(1, data)
    program.write(2, text)
    program.marks.finish()
    assert all(name and name.isprintable() for _, name, _, _ in program.drawn.slices)


@pytest.mark.parametrize("release", RELEASES)
def test_event_of_each_kernel(release: str) -> None:
    """The text is the rest of the record."""
    text = saved(release)["tracefs/events/ftrace/print/format"].decode()
    made = shape(marks_layout(1), text)
    assert (made.id, made.size) == (parse_format(text).id, 16)
    assert [(field.kind, field.offset) for field in made.fields] == [("rest", 16), ("comm", 0)]
