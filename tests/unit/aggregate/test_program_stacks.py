"""Stacks that go on in programs: counted by a thread of its own, which may be slow or hang."""

import time

import pytest

from kprobe_exporter.aggregate import program_stacks
from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.aggregate.recorded_stacks import RecordedStacks
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.stack_counts import StackCounts
from kprobe_exporter.model.records import Batch, Join, Layout, Record
from kprobe_exporter.model.stacks import Place, Stack, Weight
from kprobe_exporter.model.values import Arg
from tests.support.program_code import Code

WHOLE = Layout(1, "p", "p", "entry", "f", (Arg("n", "int"),), stack=True, user_stack=True)
ABOVE = Layout(2, "q", "q", "entry", "f", (Arg("n", "int"),), user_stack=True)
END = Layout(3, "q", "q_return", "return", "f", (Arg("n", "int"),))
CALL = Layout(4, "q", "q", "joined", "f", (Arg("n", "int"), Arg("duration", "int")))
JOIN = Join(CALL, (ABOVE,), END, "key", ("n",))
WHOLE_CALL = Join(CALL, (WHOLE,), END, "key", ("n",))

KERNEL = (b"kprobe_dispatcher", b"vfs_read")


@pytest.fixture
def counts() -> StackCounts:
    return StackCounts("p", None, 10, SeriesLimits(9, 9, None), user=True)


def record(layout: Layout, n: int) -> Record:
    return (layout.layout_id, 5, 0, 7, None, None, n)


def test_both_parts_are_one_stack(programs: ProgramStacks, counts: StackCounts) -> None:
    """Two places in one function are one frame; one without a function shows its file."""
    for addresses in ((1, 20), (2, 30), (300,), ()):
        programs.add(counts, KERNEL, 7, addresses, Weight(1, 0))
    programs.add(counts, KERNEL, 404, (1,), Weight(1, 0))
    assert programs.profile(counts).stacks == {
        (b"vfs_read", b"prog`f0", b"prog`f1"): (2, 0),
        (b"vfs_read", b"[prog]"): (1, 0),
        (b"vfs_read", b"[unknown]"): (1, 0),
        (b"vfs_read",): (1, 0),
    }


def test_the_name_of_the_process_is_the_root(programs: ProgramStacks) -> None:
    rooted = StackCounts("p", None, 10, SeriesLimits(9, 9, None), user=True, rooted=True)
    for process in (7, 8, 404):
        programs.add(rooted, KERNEL, process, (1,), Weight(1, 0))
    assert {stack[-1] for stack in programs.profile(rooted).stacks} == {
        b"program 7",
        b"program 8",
        b"[unknown]",
    }


def test_a_name_is_asked_for_once(programs: ProgramStacks, counts: StackCounts, code: Code) -> None:
    for _ in range(3):
        programs.add(counts, (), 7, (1, 20), Weight(1, 0))
        assert programs.profile(counts).hits
    assert code.asked == [2]


def test_what_hangs_delays_a_request_for_a_while(
    programs: ProgramStacks, counts: StackCounts, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the reader's calls return at once, and what has no room is lost."""
    monkeypatch.setattr(program_stacks, "PATIENCE", 0.01)
    monkeypatch.setattr(program_stacks, "MOST_WAITING", 3)
    code.goes_on.clear()
    programs.add(counts, (), 7, (1,), Weight(1, 0))
    assert programs.profile(counts).stacks == {}
    for address in range(10):
        programs.add(counts, (), 7, (16 * address,), Weight(2, 0))
    lost = counts.profile().lost
    assert lost >= 14
    code.goes_on.set()
    monkeypatch.setattr(program_stacks, "PATIENCE", 10)
    assert programs.profile(counts).hits + lost == 21


def test_addresses_that_wait_are_bounded(
    programs: ProgramStacks, counts: StackCounts, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forged stacks of 127 frames take 60 times as much memory as those of two."""
    monkeypatch.setattr(program_stacks, "MOST_ADDRESSES", 1000)
    code.goes_on.clear()
    for number in range(100):
        programs.add(counts, (), 7, tuple(range(number, number + 127)), Weight(1, 0))
    assert counts.profile().lost >= 80


def test_a_crafted_file_delays_no_other_process(programs: ProgramStacks, code: Code) -> None:
    """One process has 20 files whose symbols take long; another one asks while the first of them is read."""
    answers: list[str] = []

    def ask(process: int, file: int, then: str) -> None:
        assert programs.name(process, (file << 16,), lambda _: answers.append(then))

    def slow(place: Place) -> None:
        if place.file == 7 + 1:
            ask(8, 99, "other")
        began = time.thread_time()
        while place.file < 99 and time.thread_time() - began < 0.002:
            pass

    code.reading = slow
    code.goes_on.clear()
    for file in range(1, 21):
        ask(7, file, "crafted")
    code.goes_on.set()
    programs.settle(60)
    assert len(answers) == 21
    assert answers.index("other") <= 2


def test_questions_of_one_process_leave_room_for_others(
    programs: ProgramStacks, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_stacks, "MOST_ASKED", 10)
    code.goes_on.clear()
    asked = [programs.name(7, (number,), lambda _: None) for number in range(12)]
    assert asked == [True] * 10 + [False] * 2
    assert programs.name(8, (1,), lambda _: None)


def test_after_the_end_nothing_waits(programs: ProgramStacks, counts: StackCounts) -> None:
    programs.add(counts, (), 7, (1,), Weight(1, 0))
    programs.close()
    assert programs.profile(counts).probe == "p"


@pytest.fixture
def recorded(programs: ProgramStacks) -> RecordedStacks:
    return RecordedStacks(programs)


def test_single_events(recorded: RecordedStacks, counts: StackCounts, programs: ProgramStacks) -> None:
    """The kernel's stack may come with the next batch, and without the program's, as in an interrupt."""
    recorded.add(WHOLE, None, counts, None)
    at_once, later, alone, never = (record(WHOLE, number) for number in range(4))
    recorded.take(
        Batch(
            records=[at_once, later, alone, never],
            stacks=[(at_once, KERNEL), (alone, KERNEL)],
            user_stacks=[(at_once, 7, (1,)), (later, 7, (20,)), (never, 7, (1,))],
        )
    )
    recorded.take(Batch(stacks=[(later, KERNEL)]))
    recorded.take(Batch())
    recorded.take(Batch())
    profile = programs.profile(counts)
    assert profile.stacks == {
        (b"vfs_read", b"prog`f0"): (1, 0),
        (b"vfs_read", b"prog`f1"): (1, 0),
        (b"vfs_read",): (1, 0),
    }
    assert profile.lost == 1


def test_events_in_programs(recorded: RecordedStacks, counts: StackCounts, programs: ProgramStacks) -> None:
    recorded.add(ABOVE, None, counts, None)
    here, late, never = (record(ABOVE, number) for number in range(3))
    recorded.take(Batch(records=[here, late, never], user_stacks=[(here, 7, (1,))]))
    recorded.take(Batch(user_stacks=[(late, 7, (1,)), (here, 7, (20,))]))  # text may break off
    for _ in range(3):
        recorded.take(Batch())
    profile = programs.profile(counts)
    assert (profile.stacks, profile.lost) == ({(b"prog`f0",): (2, 0)}, 1)


@pytest.mark.parametrize("join", [JOIN, WHOLE_CALL])
def test_calls(recorded: RecordedStacks, programs: ProgramStacks, join: Join) -> None:
    counts = StackCounts("q", "duration", 10, SeriesLimits(9, 9, None), user=True)
    recorded.add(CALL, join, counts, None)
    begin = join.begins[0]
    long, short = record(begin, 1), record(begin, 2)
    kernel: list[tuple[Record, Stack]] = [(long, KERNEL), (short, KERNEL)] if begin.stack else []
    recorded.joined(short, (*record(CALL, 2), 20))
    recorded.take(Batch(stacks=kernel, user_stacks=[(long, 7, (1,)), (short, 7, (1,))]))
    recorded.joined(long, (*record(CALL, 1), 10))
    below = (b"vfs_read",) if begin.stack else ()
    assert programs.profile(counts).stacks == {(*below, b"prog`f0"): (2, 30)}
