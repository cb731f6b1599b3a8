"""When a call ends, its callback gets exactly the calls that enclosed it."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.model.records import STACK_POINTER, Batch, Join, Layout, Loss, Record
from kprobe_exporter.model.values import Arg

S = 0xFFFFC90000003E00
IRQ = 0xFFFFFE0000003E00


def args(*names: str) -> tuple[Arg, ...]:
    return tuple([Arg(name, "int") for name in names])


def call(layout_id: int, *, user: bool = False) -> Join:
    """Return a function's join; its entry, return and call have the layout_ids ``layout_id``, +1 and +2."""
    begin = Layout(layout_id, "p", "entry", "entry", "f", args(STACK_POINTER), user=user)
    end = Layout(layout_id + 1, "p", "ret", "return", "f", args(STACK_POINTER))
    return Join(Layout(layout_id + 2, "p", "f", "joined", "f", args("duration")), (begin,), end, "stack")


def pair(layout_id: int, *key: str) -> Join:
    begin = Layout(layout_id, "p", "begin", "tracepoint", "f", args("id"))
    end = Layout(layout_id + 1, "p", "end", "tracepoint", "f", args("id"))
    return Join(Layout(layout_id + 2, "p", "f", "joined", "f", args("duration")), (begin,), end, "key", key)


OUTER, INNER, SYSCALL, BLOCK = call(10), call(20), pair(30, "tid"), pair(40, "id")
POINT = Layout(50, "p", "point", "entry", "f")
READ, WRITE, USER = pair(60, "tid"), pair(70, "tid"), call(80, user=True)
SYSTEM_CALLS = READ, WRITE
ALL = OUTER, INNER, SYSCALL, BLOCK, *SYSTEM_CALLS


def entry(join: Join, time: int, place: int = S, tid: int = 7, cpu: int = 0) -> Record:
    return (join.begins[0].layout_id, time, cpu, tid, 70, None, place)


def ret(join: Join, time: int, place: int = S, tid: int = 7, cpu: int = 0) -> Record:
    return (join.end.layout_id, time, cpu, tid, 70, None, place + (8 if join.by == "stack" else 0))


def point(time: int, tid: int = 7, cpu: int = 0) -> Record:
    return (POINT.layout_id, time, cpu, tid, 70, None)


class Stream:
    """A pairing, and what it reported: when a call began, and when each of its enclosing calls began."""

    def __init__(self, *joins: Join, most_open: int = 65_536) -> None:
        self.pairing = Pairing(most_open=most_open, nested=True)
        self.told: list[tuple[int, list[int]]] = []
        for join in joins:
            self.pairing.add(join, ended=self._tell, system_call=join in SYSTEM_CALLS)
        self.pairing.watch(POINT, self._tell)

    def _tell(self, first: Record, record: Record, enclosing: list[Record]) -> None:
        assert first[1] == record[1]
        self.told.append((first[1], [outer[1] for outer in enclosing]))

    def feed(self, *records: Record, losses: tuple[Loss, ...] = ()) -> list[tuple[int, list[int]]]:
        self.told = []
        batch = self.pairing.pair(Batch(list(records), losses=list(losses)))
        assert len(batch.records) >= len(self.told)
        return self.told


def test_an_inner_call_is_told_of_while_the_outer_one_is_open() -> None:
    told = Stream(OUTER, INNER, SYSCALL).feed(
        entry(SYSCALL, 1, 5),
        entry(OUTER, 2),
        entry(INNER, 3, S - 256),
        point(4),
        ret(INNER, 5, S - 256),
        ret(OUTER, 6),
        ret(SYSCALL, 7, 5),
    )
    assert told == [(4, [3, 2, 1]), (3, [2, 1]), (2, [1]), (1, [])]


@pytest.mark.parametrize(
    ("inner", "place"),
    [(OUTER, S - 64), (INNER, IRQ), (INNER, S)],
    ids=["of the same function", "in an interrupt", "by a jump"],
)
def test_the_outer_call_is_around_the_inner_one(inner: Join, place: int) -> None:
    """A call by a jump has the stack pointer of the jumping call, and both return at the same moment."""
    told = Stream(OUTER, INNER).feed(
        entry(OUTER, 1), entry(inner, 2, place), ret(inner, 3, place), ret(OUTER, 4)
    )
    assert told == [(2, [1]), (1, [])]


def test_another_thread_is_another_matter() -> None:
    told = Stream(OUTER, INNER).feed(
        entry(OUTER, 1), entry(INNER, 2, S, tid=8), ret(INNER, 3, S, tid=8), point(4, tid=9), ret(OUTER, 5)
    )
    assert told == [(2, []), (4, []), (1, [])]


def test_the_idle_threads_of_two_cpus_are_two() -> None:
    told = Stream(OUTER).feed(entry(OUTER, 1, tid=0), point(2, tid=0, cpu=1), point(3, tid=0))
    assert told == [(2, []), (3, [1])]


def test_a_pair_by_key_lies_in_nothing_and_nothing_in_it() -> None:
    told = Stream(OUTER, BLOCK).feed(
        entry(OUTER, 1), entry(BLOCK, 2, 99), point(3), ret(BLOCK, 4, 99), ret(OUTER, 5)
    )
    assert told == [(3, [1]), (2, []), (1, [])]


def test_what_overlaps_lies_in_what_began_before() -> None:
    """A pair by thread need not be nested: a call may begin while the pair is open, and end after it."""
    told = Stream(SYSCALL, OUTER).feed(
        entry(SYSCALL, 1, 5), entry(OUTER, 2), ret(SYSCALL, 3, 5), point(4), ret(OUTER, 5)
    )
    assert told == [(1, []), (4, [2]), (2, [])]


def test_a_call_below_a_new_one_has_ended_unnoticed() -> None:
    """Its return is missing: the next call, higher on the stack, is not nested in it."""
    told = Stream(OUTER, INNER).feed(entry(INNER, 1, S - 512), entry(OUTER, 2), point(3), ret(OUTER, 4))
    assert told == [(3, [2]), (2, [])]


def test_a_call_lies_in_none_that_a_loss_has_made_doubtful() -> None:
    stream = Stream(OUTER, INNER)
    stream.feed(entry(OUTER, 1), point(2))
    later = entry(INNER, 20, S - 256), ret(INNER, 21, S - 256), ret(OUTER, 22)
    assert stream.feed(*later, losses=(Loss(0, 5, 10),)) == [(20, [])]
    assert stream.pairing.open == 0


def test_an_event_lies_in_no_call_whose_end_may_be_lost() -> None:
    stream = Stream(OUTER)
    stream.feed(entry(OUTER, 1), point(2))
    assert stream.feed(point(4), point(20), losses=(Loss(0, 5, 10),)) == [(4, [1]), (20, [])]


def test_a_thread_that_died_in_a_system_call_is_around_nothing() -> None:
    """An hour later another thread has its id, and the thread's three system calls have no enclosing call."""
    stream, later = Stream(READ, WRITE, INNER), 3600 * 10**9
    stream.feed(entry(READ, 1, 5), entry(INNER, 2))
    told = stream.feed(
        entry(WRITE, later, 5),
        ret(WRITE, later + 1, 5),
        entry(WRITE, later + 2, 5),
        entry(INNER, later + 3, S - 64),
        point(later + 4),
        ret(INNER, later + 5, S - 64),
        ret(WRITE, later + 6, 5),
        entry(WRITE, later + 7, 5),
        ret(WRITE, later + 8, 5),
    )
    relative = [(time - later, [first - later for first in enclosing]) for time, enclosing in told]
    assert relative == [(0, []), (4, [3, 2]), (3, [2]), (2, []), (7, [])]


def test_a_leader_that_was_ended_by_an_exec_is_around_nothing() -> None:
    """de_thread() of fs/exec.c gives the leader's id, but none of its calls, to the executing thread."""
    told = Stream(READ, WRITE).feed(
        entry(READ, 1, 5), entry(WRITE, 2, 5, tid=8), entry(WRITE, 3, 5), ret(WRITE, 4, 5)
    )
    assert told == [(3, [])]


def test_a_system_call_ends_nothing_of_the_program_nor_what_a_user_paired_by_thread() -> None:
    told = Stream(SYSCALL, USER, READ).feed(
        entry(SYSCALL, 1, 5),
        entry(USER, 2),
        entry(READ, 3, 5),
        ret(READ, 4, 5),
        entry(READ, 5, 5),
        point(6),
        ret(READ, 7, 5),
        ret(USER, 8),
        ret(SYSCALL, 9, 5),
    )
    assert told == [(3, [2, 1]), (6, [5, 2, 1]), (5, [2, 1]), (2, [1]), (1, [])]


def test_what_is_forgotten_of_threads_that_died_leaves_nothing() -> None:
    stream = Stream(READ, WRITE, most_open=64)
    for tid in range(1, 1000):
        stream.feed(entry(READ, tid, 5, tid=tid))
    assert stream.pairing.open <= 64
    for join in SYSTEM_CALLS:
        stream.pairing.remove(join)
    nested = stream.pairing._open_calls()
    assert (nested._threads, nested._entered) == ({}, {})
    assert nested._shown == nested._in_kernel == nested._system_calls == set()


def test_a_join_that_is_not_told_of_is_around_nothing() -> None:
    stream = Stream(INNER)
    stream.pairing.add(OUTER)
    told = stream.feed(entry(OUTER, 1), entry(INNER, 2, S - 64), ret(INNER, 3, S - 64), ret(OUTER, 4))
    assert told == [(2, [])]


def test_what_is_reset_is_not_open() -> None:
    stream = Stream(OUTER, INNER)
    stream.feed(entry(OUTER, 1), point(2))
    stream.pairing.reset(OUTER)
    assert stream.feed(point(3)) == [(3, [])]


def test_who_is_over_the_limit_is_not_open() -> None:
    stream = Stream(OUTER, most_open=64)
    for tid in range(1, 66):
        stream.feed(entry(OUTER, tid, tid=tid), point(tid, tid=tid))
    assert stream.feed(point(100, tid=1), point(101, tid=65)) == [(100, []), (101, [65])]


def test_it_is_bounded_how_far_out_is_looked() -> None:
    stream = Stream(OUTER)
    deep = [entry(OUTER, time, S - 16 * time) for time in range(1, 400)]
    ((_, enclosing),) = stream.feed(*deep, point(500))
    assert enclosing == list(range(399, 143, -1))


def test_it_has_to_be_asked_for() -> None:
    with pytest.raises(ValueError, match="nested"):
        Pairing().add(OUTER, ended=lambda *_: None)
    with pytest.raises(ValueError, match="nested"):
        Pairing().watch(POINT, lambda *_: None)


def test_a_half_is_no_single_event() -> None:
    pairing = Pairing([OUTER], nested=True)
    with pytest.raises(ValueError, match="layout_id 10 is a half"):
        pairing.watch(OUTER.begins[0], lambda *_: None)
    pairing.watch(POINT, lambda *_: None)
    with pytest.raises(ValueError, match="layout_id 50"):
        pairing.add(Join(OUTER.layout, (POINT,), OUTER.end, "key", ("tid",)))


class Life(NamedTuple):
    """The records of some threads, and the calls that enclosed each call and event, the innermost first."""

    records: list[Record]
    truth: dict[int, list[int]]


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """Generate threads that come and go under two ids, and that act in system calls only. Any of these may be
    the last: a thread dies in it, or leaves it another way, so that no call in it returns."""
    records: list[Record] = []
    truth: dict[int, list[int]] = {}
    clock = 0

    def now() -> int:
        nonlocal clock
        clock += draw(st.sampled_from([1, 1, 1, 10**12]))
        return clock

    def work(tid: int, around: list[int], place: int) -> bool:
        """Act inside a call; return whether that call returns."""
        for what in draw(st.lists(st.sampled_from(["function", "event"]), max_size=3)):
            time = now()
            truth[time] = around
            if what == "event":
                records.append(point(time, tid))
            else:
                join = draw(st.sampled_from([OUTER, INNER]))
                deeper = place - 16 * draw(st.integers(5, 9))
                records.append(entry(join, time, deeper, tid))
                if not work(tid, [time, *around], deeper):
                    return False
                records.append(ret(join, now(), deeper, tid))
        return draw(st.integers(0, 5)) > 0

    for tid in draw(st.lists(st.sampled_from([7, 8]), max_size=8)):
        join, time = draw(st.sampled_from(SYSTEM_CALLS)), now()
        stack = S - (draw(st.integers(0, 2)) << 20)  # possibly another thread with another stack
        records.append(entry(join, time, 5, tid))
        truth[time] = []
        if work(tid, [time], stack):
            records.append(ret(join, now(), 5, tid))
    return Life(records, truth)


@given(lives())
def test_what_is_around_a_call_is_open_in_truth(life: Life) -> None:
    stream = Stream(OUTER, INNER, *SYSTEM_CALLS)
    for time, enclosing in stream.feed(*life.records):
        assert enclosing == life.truth[time]


@st.composite
def halves(draw: st.DrawFn) -> list[Record]:
    """Generate entries and returns of few threads at few places, in an order that may be wrong."""
    records = []
    for time in draw(st.lists(st.integers(0, 200), max_size=80)):
        join = draw(st.sampled_from(ALL))
        half = draw(st.sampled_from([entry, ret]))
        place = S - 8 * draw(st.integers(0, 20)) if join.by == "stack" else draw(st.integers(0, 2))
        records.append(half(join, time, place, draw(st.integers(0, 2)), draw(st.integers(0, 1))))
    return records


@given(halves(), st.sampled_from([64, 65_536]), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50))))
def test_telling_changes_nothing_else(
    records: list[Record], most: int, losses: list[tuple[int, int]]
) -> None:
    stream, plain = Stream(*ALL, most_open=most), Pairing(most_open=most)
    for join in ALL:
        plain.add(join)
    told = [Loss(0, start, start + length) for start, length in losses]
    batch, other = (Batch(list(records), losses=list(told)) for _ in range(2))
    assert stream.pairing.pair(batch) == plain.pair(other)
    assert [time for time, _ in stream.told] == [record[1] for record in batch.records]
    assert all(time <= first for first, enclosing in stream.told for time in enclosing)
    for join in ALL:
        stream.pairing.reset(join)
    stream.told = []
    assert stream.feed(*(point(999, tid, cpu) for tid in range(3) for cpu in range(2))) == [(999, [])] * 6
