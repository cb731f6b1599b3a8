"""A thread's exit, exec and fork end, keep or copy its open calls."""

from dataclasses import replace

import pytest

from kprobe_exporter.aggregate.ended_threads import CLONE_VFORK, CLONE_VM
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.model.records import STACK_POINTER, TID, TIME, Batch, Join, Layout, Record
from kprobe_exporter.model.values import Arg

ENTRY = Layout(1, "f", "entry", "entry", "f", (Arg(STACK_POINTER, "int"),))
RETURN = Layout(2, "f", "ret", "return", "f", (Arg(STACK_POINTER, "int"),))
CALLED = Layout(3, "f", "f", "joined", "f", (Arg("duration", "int"),))
IN_KERNEL = Join(CALLED, (ENTRY,), RETURN, "stack")
IN_PROGRAM = Join(CALLED, (replace(ENTRY, user=True),), RETURN, "stack")
BY_TID = Join(CALLED, (ENTRY,), RETURN, "key", ("tid",))
BY_PLACE = Join(CALLED, (ENTRY,), RETURN, "key", (STACK_POINTER,))
KINDS = {"call": IN_KERNEL, "ucall": IN_PROGRAM, "tid": BY_TID}

STARTED, EXECUTED, EXITED = (
    Layout(number, "", name, "tracepoint", name) for number, name in [(11, "new"), (12, "exec"), (13, "exit")]
)
S = 0x7FFF00003E00


def entry(time: int, tid: int = 7, place: int = S) -> Record:
    return (1, time, 0, tid, 70, None, place)


def ret(time: int, tid: int = 7, place: int = S) -> Record:
    return (2, time, 0, tid, 70, None, place + 8)


def exited(time: int, tid: int = 7) -> Record:
    return (13, time, 0, tid, 70, None)


def executed(time: int, old: int = 7, tid: int = 7) -> Record:
    return (12, time, 0, tid, 70, None, old)


def started(time: int, child: int, flags: int = 0, parent: int = 7) -> Record:
    return (11, time, 0, parent, 70, None, child, flags)


def followed(join: Join, most_open: int = 65_536) -> Pairing:
    pairing = Pairing([join], most_open)
    threads = pairing.threads
    pairing.follow(STARTED, lambda record: threads.started(record[TID], record[6], record[7], record[TIME]))
    pairing.follow(EXECUTED, lambda record: threads.executed(record[6], record[TID]))
    pairing.follow(EXITED, lambda record: threads.exited(record[TID], record[TIME]))
    return pairing


def outcome(join: Join, *records: Record) -> tuple[list[int], int, int]:
    """Return the durations, and the numbers of unpaired and of open halves; in one batch and in many."""
    together, apart = followed(join), followed(join)
    batch = together.pair(Batch(list(records)))
    batches = [apart.pair(Batch([record])) for record in records]
    found = [record[6] for record in batch.records], batch.unpaired.total(), together.open
    single = [record[6] for each in batches for record in each.records]
    assert (single, sum(each.unpaired.total() for each in batches), apart.open) == found
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_ends_what_its_thread_began_before_and_nothing_of_another_thread(kind: str) -> None:
    assert outcome(KINDS[kind], entry(1), exited(5)) == ([], 1, 0)
    assert outcome(KINDS[kind], entry(1), entry(2, tid=8), exited(5, tid=8), ret(6)) == ([5], 1, 0)


def test_an_exiting_thread_still_calls_functions() -> None:
    """Such as those that close its files, after its exit was recorded (do_exit() in kernel/exit.c)."""
    inner = S - 512
    records = entry(1), exited(5), entry(6, place=inner), ret(9, place=inner)
    assert outcome(IN_KERNEL, *records) == ([3], 1, 0)


def test_a_pair_by_another_key_does_not_end_with_a_thread() -> None:
    assert outcome(BY_PLACE, entry(1), exited(5), (*ret(9, tid=8)[:6], S)) == ([8], 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_thread_has_no_calls_of_an_earlier_one(kind: str) -> None:
    """The exit of the earlier one is in the same batch, or was not recorded."""
    unseen = followed(KINDS[kind])
    assert unseen.pair(Batch([entry(1), started(5, 7, CLONE_VM, parent=3)])).unpaired.total() == 1
    assert unseen.pair(Batch([ret(9)])).records == []
    assert outcome(KINDS[kind], entry(1), exited(3), started(5, 7, CLONE_VM, parent=3), ret(9))[0] == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_exec_ends_calls_of_the_program_only(kind: str) -> None:
    expected = ([], 2, 0) if kind == "ucall" else ([8], 0, 0)
    assert outcome(KINDS[kind], entry(1), executed(5), ret(9)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_that_executes_gets_the_leaders_id(kind: str) -> None:
    """The leader, 7, exits; what it had open ends. Another process with the former id, 9, ends nothing."""
    records = [
        entry(1, tid=7, place=S + 65536),
        entry(2, tid=9),
        exited(3, tid=7),
        executed(5, old=9, tid=7),
        started(6, 9, parent=3),
        ret(20, tid=9),
    ]
    if kind == "ucall":
        assert outcome(IN_PROGRAM, *records) == ([], 3, 0)
    else:
        assert outcome(KINDS[kind], *records, ret(22, tid=7))[0] == [20]


@pytest.mark.parametrize("flags", [0, CLONE_VM | CLONE_VFORK])
def test_a_forked_child_returns_from_its_parents_calls(flags: int) -> None:
    below = S - 1024
    assert outcome(
        IN_PROGRAM,
        entry(1),
        entry(2, place=below),
        started(3, 8, flags),
        entry(4, tid=8, place=below - 512),
        ret(5, tid=8, place=below - 512),
        ret(6, tid=8, place=below),
        ret(7, place=below),
        ret(8, tid=8),
        ret(9),
    ) == ([1, 5, 8], 0, 0)


@pytest.mark.parametrize("end", [exited(3, tid=8), executed(3, 8, 8)], ids=["exits", "executes"])
def test_a_forked_child_that_ends_lost_no_call(end: Record) -> None:
    assert outcome(IN_PROGRAM, entry(1), started(2, 8), end, ret(4)) == ([3], 0, 0)


def test_a_thread_has_none_of_its_parents_calls() -> None:
    assert outcome(IN_PROGRAM, entry(1), started(2, 8, CLONE_VM), ret(3, tid=8), ret(4)) == ([3], 1, 0)


def test_a_thread_is_no_child_of_its_own() -> None:
    assert outcome(IN_PROGRAM, entry(1), started(1, 7), ret(4)) == ([3], 0, 0)


def test_forks_do_not_exceed_the_bound_of_open_halves() -> None:
    pairing = followed(IN_PROGRAM, most_open=20)
    calls = [entry(1, place=S - 64 * depth) for depth in range(3)]
    batch = pairing.pair(Batch([*calls, *(started(2, child) for child in range(10, 60))]))
    assert 0 < pairing.open <= 20
    assert batch.unpaired.total() == 3


def test_keys_of_threads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.aggregate.ended_threads.MOST_KEYS", 10)
    pairing = followed(IN_PROGRAM)
    halves = [half for tid in range(1, 100) for half in (entry(2 * tid, tid=tid), ret(2 * tid + 1, tid=tid))]
    assert len(pairing.pair(Batch([entry(1, tid=500), *halves, started(900, 501, parent=500)])).records) == 99
    assert pairing.open == 2
    assert pairing.pair(Batch([ret(901, tid=501)])).unpaired.total() == 0
