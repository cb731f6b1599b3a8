"""Two events become one record or are counted as unpaired: examples."""

from collections import Counter
from itertools import chain

import pytest

from kprobe_exporter.aggregate.matching import FARTHEST
from kprobe_exporter.aggregate.open_calls import MOST_LOSSES
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.model.records import (
    STACK_POINTER,
    TIME,
    VALUES,
    Batch,
    Join,
    Layout,
    Loss,
    Outstanding,
    Record,
)
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import where


def args(*names: str) -> tuple[Arg, ...]:
    return tuple([Arg(name, "int") for name in names])


ENTRY = Layout(1, "read", "entry", "entry", "vfs_read", args("fd", STACK_POINTER))
RETURN = Layout(2, "read", "ret", "return", "vfs_read", args(STACK_POINTER, "return", "fd"))
READ = Layout(3, "read", "read", "joined", "vfs_read", args("return", "fd", "duration", "nowhere"))
BY_STACK = Join(READ, (ENTRY,), RETURN, "stack")

WAKEUP = Layout(11, "wait", "sched_wakeup", "tracepoint", "sched_wakeup", args("target_cpu", "pid"))
NEW = Layout(12, "wait", "sched_wakeup_new", "tracepoint", "sched_wakeup_new", args("pid"))
SWITCH = Layout(13, "wait", "sched_switch", "tracepoint", "sched_switch", args("comm", "pid"))
WAIT = Layout(14, "wait", "wait", "joined", "sched_switch", args("duration", "comm", "target_cpu"))
BY_KEY = Join(WAIT, (WAKEUP, NEW), SWITCH, "key", ("pid",))

S = 0xFFFFC90000003E00
"""The stack pointer at the outermost entry."""


def entry(time: int, pointer: int | None = S, tid: int = 7, cpu: int = 0, fd: int = 3) -> Record:
    return (1, time, cpu, tid, 70, None, fd, pointer)


def ret(time: int, pointer: int | None = S + 8, tid: int = 7, cpu: int = 0) -> Record:
    return (2, time, cpu, tid, 70, b"ksys_read", pointer, -11, 99)


def wakeup(time: int, pid: int | None) -> Record:
    return (11, time, 0, 1, 1, None, 5, pid)


def new(time: int, pid: int | None) -> Record:
    return (12, time, 0, 1, 1, None, pid)


def switch(time: int, pid: int | None) -> Record:
    return (13, time, 1, 2, 2, None, b"bash", pid)


def test_halves_that_the_filter_excludes_are_no_loss() -> None:
    """The kernel may lose what it likes of them; those that may pass are unpaired as ever."""
    pairing = Pairing([BY_STACK._replace(only=where(parse_formula("fd == 4")))])
    assert paired(pairing, entry(1), entry(2), entry(3, pointer=None)) == ([], 0)
    loss = Loss(0, 4, 5)
    assert paired(pairing, ret(6), losses=(loss,)) == ([], 0)
    assert paired(pairing, entry(10, fd=4), entry(11, fd=4)) == ([], 1)
    pairing.reset(BY_STACK)
    assert paired(pairing) == ([], 1)
    ended, unpaired = paired(pairing, entry(20), ret(25))
    assert ([record[VALUES + 2] for record in ended], unpaired) == ([5], 0)


def test_what_is_outstanding_is_counted_once_a_second() -> None:
    """The weight is a field of the first half; an excluded one and one before a loss are not outstanding."""
    how = BY_STACK._replace(only=where(parse_formula("fd != 9")), outstanding=Outstanding(100, "fd"))
    pairing, second = Pairing([how]), 10**9
    opened = [entry(second, fd=5), entry(second + 50, S - 64, fd=6), entry(second, fd=9, tid=8)]
    assert pairing.pair(Batch(opened, reached=second + 120)).outstanding == {3: (1, 5)}
    assert pairing.pair(Batch(reached=second + 999)).outstanding == {}
    assert pairing.pair(Batch(reached=2 * second + 120)).outstanding == {3: (2, 11)}
    assert pairing.outstanding(3, second + 101) == 1
    ended = ret(3 * second, S - 56)
    assert pairing.pair(Batch([ended], reached=4 * second)).outstanding == {3: (1, 5)}
    broken = Batch(losses=[Loss(0, 5 * second, 5 * second + 1)], reached=6 * second)
    assert pairing.pair(broken).outstanding == {3: (0, 0)}


def paired(pairing: Pairing, *records: Record, losses: tuple[Loss, ...] = ()) -> tuple[list[Record], int]:
    batch = pairing.pair(Batch(list(records), losses=list(losses)))
    return batch.records, batch.unpaired.total()


def durations(join: Join, *records: Record, losses: tuple[Loss, ...] = ()) -> tuple[list[int], int, int]:
    """Return the durations of the joined records, and the numbers of unpaired and of open halves."""
    pairing = Pairing([join])
    found, unpaired = paired(pairing, *records, losses=losses)
    place = join.layout.place("duration")
    assert place is not None
    return [record[place] for record in found], unpaired, pairing.open


def test_what_the_joined_record_is() -> None:
    """Fields of both halves are taken from the first; the caller and the return value from the second."""
    found, unpaired = paired(Pairing([BY_STACK]), entry(1_000, cpu=1, fd=3), ret(1_250, cpu=2))
    assert found == [(3, 1_000, 1, 7, 70, b"ksys_read", -11, 3, 250, None)]
    assert unpaired == 0


def test_begins_may_have_their_arguments_at_different_places() -> None:
    found, _ = paired(Pairing([BY_KEY]), wakeup(1, 50), new(2, 51), switch(5, 51), switch(9, 50))
    assert [record[VALUES:] for record in found] == [(3, b"bash", None), (8, b"bash", 5)]


def test_a_joined_record_stands_where_its_second_half_was() -> None:
    others = [(9, time, 0, 7, 70, None) for time in range(10, 14)]
    found, _ = paired(
        Pairing([BY_STACK]), others[0], entry(10), others[1], others[2], ret(12), others[3], entry(14)
    )
    assert [record[0] for record in found] == [9, 9, 9, 3, 9]
    assert [record for record in found if record[0] == 9] == others


def test_the_batch_is_the_same_and_the_rest_of_it_stays() -> None:
    batch = Batch([entry(1)], lost=3, losses=[Loss(0, 5, 6)], unparsed=2, unpaired=Counter({9: 4}))
    pairing = Pairing([BY_STACK])
    assert pairing.pair(batch) is batch
    expected = Batch([], lost=3, losses=[Loss(0, 5, 6)], unparsed=2, unpaired=Counter({9: 4}))
    expected.begun = {READ.layout_id: 1}
    assert batch == expected
    assert pairing.open == 1


def test_what_the_source_turned_away_has_begun_too() -> None:
    """Hits of a pair are firings of its first events, whether or not these pass their filter."""
    batch = Batch([wakeup(1, 50), switch(5, 50)])
    batch.arrived, batch.passed = {11: 4, 12: 2, 13: 9, 77: 3}, {11: 1, 12: 0, 13: 1}
    pairing = Pairing([BY_KEY])
    found = pairing.pair(batch)
    assert (len(found.records), found.begun) == (1, {WAIT.layout_id: 1 + 3 + 2})
    assert (found.arrived, found.passed) == ({77: 3}, {})  # sums of others
    pairing.remove(BY_KEY)
    assert pairing.pair(Batch(arrived={11: 4}, passed={11: 1})).begun == {}


def test_without_joins_nothing_changes() -> None:
    records = [entry(1), ret(2)]
    assert paired(Pairing(), *records) == (records, 0)


def test_halves_may_be_in_different_batches() -> None:
    pairing = Pairing([BY_STACK])
    assert paired(pairing, entry(1)) == ([], 0)
    (found,), unpaired = paired(pairing, ret(5))
    assert (found[READ.place("duration") or 0], unpaired) == (4, 0)


STACK: dict[str, tuple[list[Record], list[int], int, int]] = {
    "a call": ([entry(1), ret(4)], [3], 0, 0),
    "no time at all": ([entry(1), ret(1)], [0], 0, 0),
    "a clock that goes back": ([entry(5), ret(4)], [], 2, 0),
    "a return alone": ([ret(4)], [], 1, 0),
    "an entry alone": ([entry(1)], [], 0, 1),
    "nested": ([entry(1), entry(2, S - 96), ret(4, S - 88), ret(8)], [2, 7], 0, 0),
    "one frame of 16 bytes": ([entry(1), entry(2, S - 16), ret(4, S - 8), ret(8)], [2, 7], 0, 0),
    "another thread": ([entry(1), entry(2, tid=8), ret(4), ret(8, tid=8)], [3, 6], 0, 0),
    "another CPU": ([entry(1, cpu=0), ret(4, cpu=3)], [3], 0, 0),
    "an unreadable entry": ([entry(1, None), ret(4)], [], 2, 0),
    "an unreadable return": ([entry(1), ret(4, None)], [], 1, 1),
    "the same place again: the first returned unnoticed": ([entry(1), entry(3), ret(4)], [1], 1, 0),
    "a higher place: what is below is dead": ([entry(1, S - 96), entry(3), ret(4)], [1], 1, 0),
    "so its return is another call's": ([entry(1, S - 96), entry(3), ret(4), ret(9, S - 88)], [1], 2, 0),
    "the inner one did not return": ([entry(1), entry(2, S - 96), ret(4)], [3], 1, 0),
    "the inner one was not entered": ([entry(1), ret(4, S - 88), ret(6)], [5], 1, 0),
    "an interrupt's stack is another one": ([entry(1), entry(2, S + 99 * 2**14), ret(4)], [3], 0, 1),
    "an interrupt": ([entry(1), entry(2, 2**63), ret(4, 2**63 + 8), ret(6)], [2, 5], 0, 0),
    "a thread's stack of user space": ([entry(1, 2**14 - 8), ret(4, 2**14)], [3], 0, 0),
    "the lowest place": ([entry(1, 0), ret(4, 8)], [3], 0, 0),
    "below the lowest place": ([entry(1, 0), ret(4, 0)], [], 1, 1),
}


@pytest.mark.parametrize("case", STACK)
def test_by_stack(case: str) -> None:
    records, *counts = STACK[case]
    assert durations(BY_STACK, *records) == (*counts,)


def test_with_the_distance_known_a_return_of_an_open_call_is_never_taken_for_another() -> None:
    """A return whose entry is missing stays unpaired, although an open entry is 16 bytes away."""
    calls = [record for time in range(0, 40, 2) for record in (entry(time), ret(time + 1))]
    near = [entry(100), ret(101, S - 8), ret(102)]
    assert durations(BY_STACK, *calls, *near) == ([1] * 20 + [2], 1, 0)


@pytest.mark.parametrize("distance", range(0, FARTHEST + 1, 8))
def test_the_distance_is_found_out_by_the_first_return(distance: int) -> None:
    records = [entry(1), entry(2, S - 128), ret(4, S - 128 + distance), ret(8, S + distance)]
    assert durations(BY_STACK, *records) == ([2, 7], 0, 0)


ODD = [entry(1), entry(2, S - 40), ret(4, S)]


@pytest.mark.parametrize("distance", [-8, 1, 12, FARTHEST + 8, 4096])
def test_a_distance_that_cannot_be_is_not_learnt(distance: int) -> None:
    records = [record for time in range(9) for record in (entry(time), ret(time, S + distance))]
    joined, unpaired, still_open = durations(BY_STACK, *records)
    assert (joined, unpaired + still_open) == ([], 18)


def test_a_wrong_distance_is_outvoted() -> None:
    """The distance is 0; as the inner call did not return, the first return seems 40 above its entry."""
    good = [record for time in range(10, 20, 2) for record in (entry(time), ret(time + 1, S))]
    assert durations(BY_STACK, *ODD, *good) == ([2] + [1] * 4, 3, 0)


def test_a_wrong_distance_does_not_make_nested_calls_wrong() -> None:
    """Frames are as large as the error, so each return would match the entry of the call inside its own."""
    deep = [entry(10 + depth, S - 40 * depth) for depth in range(9)]
    deep += [ret(30 - depth, S - 40 * depth) for depth in reversed(range(9))]
    joined, unpaired, still_open = durations(BY_STACK, *ODD, *deep)
    assert joined == [2, *[20 - 2 * depth for depth in reversed(range(8))]]
    assert (unpaired, still_open) == (3, 0)


def test_a_wrong_distance_goes_away_though_returns_are_missing_again_and_again() -> None:
    """The innermost of three calls never returns, and lies 40 bytes below, which is the distance's error."""
    records = [entry(1, tid=9), ret(2, S + 48, tid=9)]
    for time in range(100, 500, 100):
        records += [entry(time + depth, S - 40 * depth) for depth in range(3)]
        records += [ret(time + 50 - depth, S - 40 * depth + 8) for depth in (1, 0)]
    joined, unpaired, still_open = durations(BY_STACK, *records)
    assert joined == [1, 50, 48, 50, 48, 50]
    assert len(records) == 2 * len(joined) + unpaired + still_open


def test_distances_that_take_turns_make_nothing_wrong() -> None:
    """A distance needs more votes than matched returns to take over; returns at others are unpaired."""
    records = []
    for time in range(0, 4_000, 40):
        records += [entry(time), entry(time + 1, S - 4096), ret(time + 2, S - 4096 + 8 * (time // 40 % 3))]
        records.append(ret(time + 3, S + 8 * (time // 40 % 3)))
    joined, unpaired, still_open = durations(BY_STACK, *records)
    assert set(joined) == {1, 3}
    assert unpaired + still_open == len(records) - 2 * len(joined)


def test_what_spans_a_loss_has_no_vote() -> None:
    pairing = Pairing([BY_STACK])
    loss = Loss(0, 2, 3)
    assert paired(pairing, entry(1), entry(2, S - 40), ret(4, S), losses=(loss,)) == ([], 3)
    (found,), _ = paired(pairing, entry(11), ret(12))
    assert found[READ.place("duration") or 0] == 1


LOSSES: dict[str, tuple[list[Loss], list[int]]] = {
    "none": ([], [9]),
    "in between": ([Loss(3, 12, 14)], []),
    "around": ([Loss(3, 5, 30)], []),
    "over the first": ([Loss(3, 5, 11)], []),
    "over the second, it ends later": ([Loss(3, 18, 10**12)], []),
    "before": ([Loss(3, 5, 10)], [9]),
    "after": ([Loss(3, 19, 30)], [9]),
    "both": ([Loss(3, 19, 30), Loss(1, 1, 10)], [9]),
    "one of them, told late": ([Loss(3, 25, 30), Loss(1, 11, 12)], []),
}


@pytest.mark.parametrize("case", LOSSES)
def test_both_halves_of_what_spans_a_loss_are_unpaired(case: str) -> None:
    losses, joined = LOSSES[case]
    found = durations(BY_STACK, entry(10), ret(19), losses=tuple(losses))
    assert found == (joined, 2 - 2 * len(joined), 0)


def test_both_halves_of_what_spans_a_loss_by_key_are_unpaired() -> None:
    assert durations(BY_KEY, wakeup(10, 50), switch(19, 50), losses=(Loss(0, 12, 13),)) == ([], 2, 0)


def test_without_the_loss_two_calls_would_be_one() -> None:
    """The return of one call and the entry of the next at the same place were lost."""
    assert durations(BY_STACK, entry(10), ret(90)) == ([80], 0, 0)
    assert durations(BY_STACK, entry(10), ret(90), losses=(Loss(0, 20, 80),)) == ([], 2, 0)


def test_a_loss_that_is_to_come_waits_for_its_time() -> None:
    pairing = Pairing([BY_STACK])
    paired(pairing, entry(1), ret(2), losses=(Loss(0, 100, 200),))
    assert len(paired(pairing, entry(50), ret(60))[0]) == 1
    paired(pairing, entry(70))
    assert paired(pairing, ret(150)) == ([], 2)
    assert paired(pairing, entry(160), ret(170)) == ([], 2)
    assert len(paired(pairing, entry(200), ret(201))[0]) == 1


@pytest.mark.parametrize("reached", [7, 0])
def test_half_that_a_loss_broke_is_told_at_once(reached: int) -> None:
    """Its return and its thread's exit may have been lost; a return that still comes is told, too."""
    pairing = Pairing([BY_STACK])
    later = [entry(8, tid=8)] if not reached else []
    batch = pairing.pair(Batch([entry(1), *later], losses=[Loss(0, 3, 5)], reached=reached))
    assert (batch.unpaired.total(), pairing.open) == (1, 1 + len(later))
    for _ in range(2):
        assert paired(pairing, losses=(Loss(0, 4, 5),)) == ([], 0)
    assert paired(pairing, ret(9)) == ([], 1)


def test_half_after_a_loss_is_not_told() -> None:
    pairing = Pairing([BY_STACK])
    assert paired(pairing, entry(5), entry(6, S - 400), losses=(Loss(0, 3, 5),)) == ([], 0)


def test_losses_that_wait_are_bounded_and_all_are_heeded() -> None:
    pairing = Pairing([BY_STACK])
    losses = tuple([Loss(0, 10 * place, 10 * place + 1) for place in range(1, 3 * MOST_LOSSES)])
    paired(pairing, losses=losses)
    assert len(paired(pairing, entry(1), ret(9))[0]) == 1
    for loss in losses[::50]:
        assert paired(pairing, entry(loss.start), ret(loss.start + 5)) == ([], 2)
    last = losses[-1].end
    assert len(paired(pairing, entry(last), ret(last + 5))[0]) == 1


KEY: dict[str, tuple[list[Record], list[int], int, int]] = {
    "a wakeup and its switch": ([wakeup(1, 50), switch(4, 50)], [3], 0, 0),
    "others in between": ([wakeup(1, 50), wakeup(2, 51), switch(4, 51), switch(6, 50)], [2, 5], 0, 0),
    "the latest of all begins": ([wakeup(1, 50), new(3, 50), switch(4, 50)], [1], 1, 0),
    "a switch that followed no wakeup": ([switch(4, 50), switch(5, 50)], [], 0, 0),
    "only one switch": ([wakeup(1, 50), switch(4, 50), switch(5, 50)], [3], 0, 0),
    "an unreadable first": ([wakeup(1, None), switch(4, None)], [], 1, 0),
    "an unreadable second": ([wakeup(1, 50), switch(4, None)], [], 0, 1),
}


@pytest.mark.parametrize("case", KEY)
def test_by_key(case: str) -> None:
    records, *counts = KEY[case]
    assert durations(BY_KEY, *records) == (*counts,)


@pytest.mark.parametrize("key", [("cpu", "tid"), ("tid", "pid", "cpu")])
def test_a_key_may_be_what_every_record_has(key: tuple[str, ...]) -> None:
    join = Join(READ, (ENTRY,), RETURN, "key", key)
    records = [entry(1, tid=8, cpu=1), entry(2, tid=8), ret(4, tid=8), ret(9, tid=8, cpu=1)]
    assert durations(join, *records) == ([2, 8], 0, 0)


def test_one_kernel_event_may_be_both_halves() -> None:
    """A switch ends one thread's absence and begins another's; the duration is known at the end."""
    out = Layout(21, "off", "out", "tracepoint", "sched_switch", args("state", "pid"))
    back = Layout(22, "off", "back", "tracepoint", "sched_switch", args("pid"))
    away = Layout(23, "off", "away", "joined", "sched_switch", args("duration", "state"))
    pairing = Pairing([Join(away, (out,), back, "key", ("pid",))])
    switches = [
        ((21, time, 0, goes, goes, None, 1, goes), (22, time, 0, goes, goes, None, comes))
        for time, goes, comes in [(10, 50, 51), (14, 51, 50), (15, 50, 52)]
    ]
    found, unpaired = paired(pairing, *chain.from_iterable(switches))
    assert [record[VALUES:] for record in found] == [(4, 1)]
    assert (unpaired, pairing.open) == (0, 2)


def test_joins_do_not_see_each_other() -> None:
    pairing = Pairing([BY_STACK, BY_KEY])
    found, unpaired = paired(pairing, entry(1, tid=50), wakeup(2, 50), ret(5, tid=50), switch(6, 50))
    assert [(record[0], record[TIME]) for record in found] == [(3, 1), (14, 2)]
    assert unpaired == 0


def test_after_a_reset_nothing_that_was_open_is_joined() -> None:
    pairing = Pairing([BY_STACK, BY_KEY])
    paired(pairing, entry(1), entry(2, S - 96), wakeup(3, 50))
    pairing.reset(BY_STACK)
    assert pairing.open == 1
    found, unpaired = paired(pairing, ret(5), entry(6), ret(8), switch(9, 50))
    assert [record[0] for record in found] == [3, 14]
    assert unpaired == 3
    assert paired(pairing) == ([], 0)


def test_halves_of_a_removed_join_are_plain_records() -> None:
    pairing = Pairing([BY_STACK])
    paired(pairing, entry(1))
    pairing.remove(BY_STACK)
    assert pairing.open == 0
    assert paired(pairing, entry(2), ret(3)) == ([entry(2), ret(3)], 1)
    pairing.add(BY_STACK)
    assert len(paired(pairing, entry(5), ret(6))[0]) == 1


def test_a_slot_is_of_one_join() -> None:
    with pytest.raises(ValueError, match="layout_id 1 of the join 'read' is a half of another join"):
        Pairing([BY_STACK, BY_STACK])


@pytest.mark.parametrize(
    ("join", "said"),
    [
        (Join(WAIT, (WAKEUP,), SWITCH, "stack"), "'sched_wakeup' lacks a field that 'wait' is to be paired"),
        (Join(WAIT, (WAKEUP,), SWITCH, "key", ("target_cpu",)), "'sched_switch' lacks"),
    ],
)
def test_what_it_cannot_be_paired_by(join: Join, said: str) -> None:
    pairing = Pairing()
    with pytest.raises(ValueError, match=said):
        pairing.add(join)
    records = [wakeup(1, 50), switch(2, 50)]
    assert paired(pairing, *records) == (records, 0)


def test_over_the_bound_the_oldest_threads_calls_go() -> None:
    pairing = Pairing([BY_STACK, BY_KEY], most_open=3)
    paired(pairing, entry(1, tid=1), wakeup(2, 50), entry(3, S - 96, tid=1))
    assert paired(pairing, entry(4, tid=2)) == ([], 2)
    assert pairing.open == 2
    found, unpaired = paired(pairing, switch(5, 50), ret(6, tid=2), ret(7, S - 88, tid=1), ret(8, tid=1))
    assert [record[0] for record in found] == [14, 3]
    assert unpaired == 2


def test_evicted_halves_are_counted_once() -> None:
    """Those that the filter of the join excludes are no loss."""
    pairing = Pairing([BY_STACK._replace(only=where(parse_formula("fd != 9")))], most_open=3)
    flood = [entry(1, tid=1, fd=9), entry(2, tid=2), entry(3, tid=3), entry(4, tid=4)]
    batch = pairing.pair(Batch(flood))
    assert pairing.open == 3
    assert batch.evicted == {}
    batch = pairing.pair(Batch([entry(5, tid=5)]))
    assert batch.evicted == batch.unpaired == {READ.layout_id: 1}
    assert pairing.pair(Batch()).evicted == {}


def test_a_flood_of_entries_is_bounded() -> None:
    pairing = Pairing([BY_STACK], most_open=640)
    _, unpaired = paired(pairing, *[entry(tid, tid=tid) for tid in range(1, 5_000)])
    assert 630 <= pairing.open <= 640
    assert unpaired == 4_999 - pairing.open
    found, _ = paired(pairing, *[ret(6_000, tid=tid) for tid in range(1, 5_000)])
    assert [record[3] for record in found] == list(range(5_000 - len(found), 5_000))


def test_first_halves_are_counted() -> None:
    pairing = Pairing([BY_STACK, BY_KEY])
    batch = Batch(records=[entry(1), ret(2), entry(3), wakeup(4, 7)])
    assert pairing.pair(batch).begun == {READ.layout_id: 2, WAIT.layout_id: 1}
    assert pairing.pair(Batch(records=[entry(5, None), ret(6)])).begun == {READ.layout_id: 1}
